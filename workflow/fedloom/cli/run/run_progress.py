"""The progress of a study's run: the jobs done, at work and left, from Snakemake's events.

`fedloom run` begins a file of events; Snakemake's logger adds to it, and everybody may read it.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_text
from fedloom.machine.job_events import Progress, last_progress
from fedloom.machine.process_log import QUIET
from fedloom.planning.plan import Plan
from fedloom.planning.resources.cost import job_seconds

EVENTS = Path(".snakemake/fedloom.jsonl")
END = '{"event": "end"}\n'
NO_JOBS = ("total", "all")  # counted with the jobs by Snakemake
SMALL = 0.5  # seconds that a job takes which has no estimate: a table, a choice


def begin(plan: Plan, arguments: Sequence[str]) -> None:
    """Begin the file of events with a study, Snakemake's arguments, and estimates of the jobs."""
    every = job_seconds(plan)
    to_do = {
        rule: [each for file, each in jobs.items() if not Path(file).exists()] or jobs.values()
        for rule, jobs in every.items()
    }
    first = {
        "event": "begin",
        "study": plan.name,
        "arguments": list(arguments),
        "process": os.getpid(),
        "time": time.time(),
        "seconds": {str(file): each for jobs in every.values() for file, each in jobs.items()},
        "means": {rule: fmean(estimates) for rule, estimates in to_do.items()},
    }
    write_text(EVENTS, json.dumps(first) + "\n")  # a new file: who reads the old one goes on


def tell(text: str) -> None:
    """Show a line to who started the run: on the display of `fedloom run`, or else on stderr."""
    if QUIET not in os.environ:
        print(text, file=sys.stderr)
        return
    with EVENTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": "note", "text": text}) + "\n")


def end() -> None:
    """Add the event that the run's jobs have ended."""
    with EVENTS.open("a", encoding="utf-8") as file:
        file.write(END)


def last_begun() -> dict[str, Any]:
    """Return the event of the run that began last in this folder."""
    if not EVENTS.exists():
        raise FedLoomError("no run has been started in this folder; start one with `fedloom run`")
    with EVENTS.open(encoding="utf-8") as file:
        return json.loads(file.readline())


def ended(first: dict[str, Any]) -> bool:
    """Return True if a run has ended or was killed, by its first event."""
    with EVENTS.open("rb") as file:
        file.seek(-len(END), os.SEEK_END)
        return file.read() == END.encode() or not psutil.pid_exists(first["process"])


@dataclass
class Job:
    """A job at work."""

    rule: str
    name: str  # of the run, or of the table or figure
    log: Path | None
    seconds: float  # its estimate
    begun: float  # seconds of the clock
    progress: Progress | None = None

    def look(self) -> None:
        """Update `progress` from the job's events, ignoring those of an earlier attempt."""
        if self.log and self.log.exists() and self.log.stat().st_mtime >= self.begun:
            self.progress = last_progress(self.log)


@dataclass
class RunProgress:
    """The state of a study's run after the events so far."""

    study: str = ""
    begun: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)  # estimates by a file of the job
    means: dict[str, float] = field(default_factory=dict)  # of the estimates, by rule
    jobs: dict[str, int] = field(default_factory=dict)  # how many are to be done, by rule
    running: dict[int, Job] = field(default_factory=dict)
    done: int = 0
    failed: set[int] = field(default_factory=set)
    work: float = 0.0  # seconds by the estimates, of jobs that are done

    def apply_event(self, event: dict[str, Any]) -> tuple[str, Job] | None:
        """Process an event. Return ("finished" or "failed", job) if it ends a job at work."""
        kind = event["event"]
        if kind == "begin":
            self.study = event["study"]
            self.begun = event["time"]
            self.seconds = event["seconds"]
            self.means = event["means"]

        elif kind == "run_info":
            self.jobs = {rule: n for rule, n in event["stats"].items() if rule not in NO_JOBS}

        elif kind == "job_info" and event["rule_name"] not in NO_JOBS:
            self.running[event["jobid"]] = self._job(event)
            self.failed.discard(event["jobid"])  # it is tried again

        # an error is told twice, the second time of a job that is not at work
        elif kind == "job_finished" and event["job_id"] in self.running:
            job = self.running.pop(event["job_id"])
            job.look()
            self.done += 1
            self.work += job.seconds
            return "finished", job

        elif kind == "job_error" and event["jobid"] in self.running:
            job = self.running.pop(event["jobid"])
            job.look()
            self.failed.add(event["jobid"])
            return "failed", job

        return None

    def _job(self, event: dict[str, Any]) -> Job:
        wildcards, output = event["wildcards"] or {}, event["output"] or []
        return Job(
            event["rule_name"],
            "/".join(f"seed{v}" if k == "seed" else v for k, v in wildcards.items() if k != "end"),
            Path(event["log"][0]) if event["log"] else None,
            max((self.seconds.get(file, SMALL) for file in output), default=SMALL),
            event["time"],
        )

    def share(self) -> float:
        """Return the estimated fraction of the work that is done."""
        whole = sum(count * self.means.get(rule, SMALL) for rule, count in self.jobs.items())
        begun = [(job.seconds, job.progress) for job in self.running.values()]
        now = self.work + sum(seconds * each.share for seconds, each in begun if each)
        return min(now / whole, 1.0) if whole else 0.0

    def seconds_left(self, now: float) -> float | None:
        """Return how long the rest takes at the pace so far; None without one."""
        share = self.share()
        return (now - self.begun) * (1 / share - 1) if share > 0.01 else None
