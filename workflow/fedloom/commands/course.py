"""The course of a study's run: the jobs done, at work and left, from the events of Snakemake.

`fedloom run` begins a file of events; Snakemake's logger adds to it, and everybody may read it.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fedloom.common.errors import FedLoomError
from fedloom.common.io import write_text
from fedloom.common.logs import Progress, last_progress
from fedloom.study.cost import job_seconds
from fedloom.study.plan import Plan

EVENTS = Path(".snakemake/fedloom.jsonl")
STOP, END = '{"event": "stop"}\n', '{"event": "end"}\n'
NO_JOBS = ("total", "all")  # counted with the jobs by Snakemake
SMALL = 0.5  # seconds that a job takes which has no estimate: a table, a choice


def begin(plan: Plan, arguments: Sequence[str]) -> None:
    """Begin the file of events with a study, Snakemake's arguments, and estimates of the jobs."""
    seconds = {
        rule: {str(file): round(each, 3) for file, each in jobs.items()}
        for rule, jobs in job_seconds(plan).items()
    }
    missing = {
        rule: [file for file in jobs if not Path(file).exists()] for rule, jobs in seconds.items()
    }
    first = {
        "event": "begin",
        "study": plan.name,
        "arguments": list(arguments),
        "process": os.getpid(),
        "since": psutil.Process().create_time(),
        "time": time.time(),
        "seconds": seconds,
        "missing": missing,
    }
    write_text(EVENTS, json.dumps(first) + "\n")  # a new file: who reads the old one goes on


def note(line: str) -> None:
    """Add an event: STOP when a signal ends the run, END when its jobs have ended."""
    with EVENTS.open("a", encoding="utf-8") as file:
        file.write(line)


def last_begun() -> dict[str, Any]:
    """Return the event of the run that began last in this folder."""
    if not EVENTS.exists():
        raise FedLoomError("no run was begun in this folder; begin one with `fedloom run`")
    with EVENTS.open(encoding="utf-8") as file:
        return json.loads(file.readline())


def ended(first: dict[str, Any]) -> bool:
    """Return True if a run has ended, by its first event; another process may have its number."""
    try:
        if psutil.Process(first["process"]).create_time() != first["since"]:
            return True
    except psutil.NoSuchProcess:
        return True
    with EVENTS.open("rb") as file:
        file.seek(-len(END), os.SEEK_END)
        return file.read() == END.encode()


@dataclass
class Job:
    """A job at work."""

    rule: str
    name: str  # of the run, or of the table or figure
    log: Path | None
    seconds: float  # its estimate
    begun: float = 0.0  # seconds of the clock
    progress: Progress | None = None

    def look(self) -> None:
        """Read its progress in its log, if it wrote to it since it began."""
        try:
            written = self.log.stat().st_mtime if self.log else 0.0
        except FileNotFoundError:
            return
        if self.log and written >= self.begun:
            self.progress = last_progress(self.log)


@dataclass
class Course:
    """The state of a study's run after the events so far.

    Attributes:
        seconds: the estimates of the study's jobs, by rule and the file that a job makes.
        missing: those files that did not exist at the beginning, by rule.
        jobs: the number of jobs to do, by rule.
    """

    study: str = ""
    begun: float = 0.0
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    running: dict[int, Job] = field(default_factory=dict)
    done: int = 0
    failed: set[int] = field(default_factory=set)
    stopped: bool = False  # by a signal, as are the jobs that fail then
    work: float = 0.0  # seconds by the estimates, of jobs that are done

    def take(self, event: dict[str, Any]) -> tuple[str, Job] | None:
        """Take in an event; return a job that it ends, after "finished", "failed" or "stopped"."""
        kind = event["event"]
        if kind == "begin":
            self.study, self.begun = event["study"], event["time"]
            self.seconds, self.missing = event["seconds"], event["missing"]
        elif kind == "run_info":
            self.jobs = {rule: n for rule, n in event["stats"].items() if rule not in NO_JOBS}
        elif kind == "job_info":
            if event["rule_name"] not in NO_JOBS:
                self.running[event["jobid"]] = self._job(event)
                self.failed.discard(event["jobid"])  # it is tried again
        elif kind == "stop":
            self.stopped = True
        elif kind in ("job_finished", "job_error"):
            number = event["job_id" if kind == "job_finished" else "jobid"]
            job = self.running.pop(number, None)
            if job is None:  # a job's error is told twice
                return None
            job.look()
            if kind == "job_error" and self.stopped:
                return "stopped", job
            if kind == "job_error":
                self.failed.add(number)
                return "failed", job
            self.done += 1
            self.work += job.seconds
            return "finished", job
        return None

    def _job(self, event: dict[str, Any]) -> Job:
        wildcards, output = event["wildcards"] or {}, event["output"] or []
        estimates = self.seconds.get(event["rule_name"], {})
        return Job(
            event["rule_name"],
            "/".join(f"seed{v}" if k == "seed" else v for k, v in wildcards.items() if k != "end"),
            Path(event["log"][0]) if event["log"] else None,
            max((estimates.get(file, SMALL) for file in output), default=SMALL),
            event["time"],
        )

    def look(self) -> None:
        """Read the progress of the jobs at work."""
        for job in self.running.values():
            job.look()

    @property
    def total(self) -> int:
        """The number of jobs that this run has to do."""
        return sum(self.jobs.values())

    def share(self) -> float:
        """Return which share of the work is done, by the estimates of the jobs."""
        whole = sum(count * self._mean(rule) for rule, count in self.jobs.items())
        now = self.work
        for job in self.running.values():
            now += job.seconds * job.progress.share if job.progress else 0.0
        return min(now / whole, 1.0) if whole else 0.0

    def _mean(self, rule: str) -> float:
        """Return the mean estimate of a rule's jobs to do: those whose files are missing.

        If they are not as many as the jobs, Snakemake makes some again, and it is that of all.
        """
        estimates, missing = self.seconds.get(rule, {}), self.missing.get(rule, [])
        files = missing if len(missing) == self.jobs[rule] else list(estimates)
        return sum(estimates[file] for file in files) / len(files) if files else SMALL

    def seconds_left(self, now: float) -> float | None:
        """Return how long the rest takes at the pace so far; None without one, or once stopped."""
        share = self.share()
        return (now - self.begun) * (1 / share - 1) if share > 0.01 and not self.stopped else None
