"""Follow the progress of a study's run: which jobs are done, at work and left.

`fedloom run` begins a file of events, and the plugin for Snakemake's logger adds events to it. Any
process may read the file.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import psutil

from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_text
from fedloom.common.json_types import JsonDict
from fedloom.machine.job_events import Progress, last_progress
from fedloom.machine.process_log import QUIET_VARIABLE
from fedloom.planning.plan import Plan
from fedloom.planning.resources.cost import job_seconds
from fedloom.planning.time_left import Pace, Rest, TimeLeft, time_left

EVENTS = Path(".snakemake/fedloom.jsonl")
END_EVENT = '{"event": "end"}\n'
# the name of the event that Snakemake found no job to run
UP_TO_DATE = "up_to_date"
# Snakemake counts these among the jobs, but they are none
NO_JOBS = ("total", "all")
# the seconds that a job without an estimate is assumed to take, such as a table or a choice
SMALL_JOB_SECONDS = 0.5


def begin_run(plan: Plan, arguments: Sequence[str]) -> None:
    """Begin the file of events with a study, Snakemake's arguments, and estimates of the jobs."""
    # the estimate of each job, and each rule's mean over the jobs that are left
    seconds = dict[str, float]()
    means = dict[str, float]()
    for rule, jobs in job_seconds(plan).items():
        for file, estimate in jobs.items():
            seconds[str(file)] = estimate
        left = [estimate for file, estimate in jobs.items() if not file.exists()]
        means[rule] = fmean(left or jobs.values())

    first = {
        "event": "begin",
        "study": plan.name,
        "arguments": list(arguments),
        "process": os.getpid(),
        "time": time.time(),
        "seconds": seconds,
        "means": means,
    }

    # this makes a new file, so that a process can go on reading the old one
    write_text(EVENTS, json.dumps(first) + "\n")


def tell(text: str) -> None:
    """Show a line to the user: on the display of `fedloom run`, or without it on stderr."""
    if QUIET_VARIABLE not in os.environ:
        print(text, file=sys.stderr)
        return
    with EVENTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"event": "note", "text": text}) + "\n")


def end_run() -> None:
    """Add the event that the run's jobs have ended."""
    with EVENTS.open("a", encoding="utf-8") as file:
        file.write(END_EVENT)


def last_begun() -> JsonDict:
    """Return the first event of the run that began last in this folder.

    Raises:
        FedLoomError: no run has begun in this folder.
    """
    if not EVENTS.exists():
        raise FedLoomError("no run has been started in this folder; start one with `fedloom run`")
    with EVENTS.open(encoding="utf-8") as file:
        return json.loads(file.readline())


def has_ended(first: JsonDict) -> bool:
    """Return True if the run with this first event has ended, or was killed."""
    with EVENTS.open("rb") as file:
        file.seek(-len(END_EVENT), os.SEEK_END)
        return file.read() == END_EVENT.encode() or not psutil.pid_exists(first["process"])


@dataclass
class RunningJob:
    """A job at work."""

    rule: str
    # the name of the run, table or figure
    name: str
    log: Path | None
    # the estimated time that it takes
    seconds: float
    # when it began, in seconds since 1970
    begun: float
    progress: Progress | None = None

    def look(self) -> None:
        """Update `progress` from the job's events; ignore the events of an earlier attempt."""
        if self.log and self.log.exists() and self.log.stat().st_mtime >= self.begun:
            self.progress = last_progress(self.log)


@dataclass
class RunProgress:
    """The state of a study's run after the events so far."""

    study: str = ""
    begun: float = 0.0
    # the estimated seconds of each job, by one of its files, and the mean of each rule
    seconds: dict[str, float] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    # True if Snakemake found that no job is to be done
    is_up_to_date: bool = False
    # how many jobs are to be done, by rule
    jobs: dict[str, int] = field(default_factory=dict)
    # jobs at work, and those that failed, by Snakemake's number of a job
    running: dict[int, RunningJob] = field(default_factory=dict)
    done: int = 0
    failed: set[int] = field(default_factory=set)
    # the estimated seconds of all jobs that are done
    work: float = 0.0
    # what jobs took that are done, and when the first job began
    pace: Pace = field(default_factory=Pace)
    first_begun: float | None = None
    # the rule and the estimated seconds of every job that has begun, by Snakemake's number
    started: dict[int, tuple[str, float]] = field(default_factory=dict)

    def apply_event(self, event: JsonDict) -> tuple[str, RunningJob] | None:
        """Process an event. Return ("finished" or "failed", job) if it ends a job at work."""
        name = event["event"]
        if name == "begin":
            self.study = event["study"]
            self.begun = event["time"]
            self.seconds = event["seconds"]
            self.means = event["means"]

        elif name == "run_info":
            self.jobs = {rule: n for rule, n in event["stats"].items() if rule not in NO_JOBS}

        elif name == UP_TO_DATE:
            self.is_up_to_date = True

        elif name == "job_info" and event["rule_name"] not in NO_JOBS:
            # a job that failed before may be tried again
            job = self._job(event)
            self.running[event["jobid"]] = job
            self.started[event["jobid"]] = (job.rule, job.seconds)
            if self.first_begun is None:
                self.first_begun = job.begun
            self.failed.discard(event["jobid"])

        # Snakemake reports an error twice; the second time, the job is not at work any more
        elif name == "job_finished" and event["job_id"] in self.running:
            job = self.running.pop(event["job_id"])
            job.look()
            self.done += 1
            self.work += job.seconds
            self.pace.add(job.rule, event["time"] - job.begun, job.seconds)
            return "finished", job

        elif name == "job_error" and event["jobid"] in self.running:
            job = self.running.pop(event["jobid"])
            job.look()
            self.failed.add(event["jobid"])
            return "failed", job

        return None

    def _job(self, event: JsonDict) -> RunningJob:
        """Return the job that an event describes as begun."""
        # join its labels as in the name of a run
        labels = list[str]()
        for key, value in (event["wildcards"] or {}).items():
            if key == "seed":
                labels.append(f"seed{value}")
            elif key != "end":
                labels.append(value)

        log = None
        if event["log"]:
            log = Path(event["log"][0])

        # one of its files has the estimate
        estimates = [self.seconds.get(file, SMALL_JOB_SECONDS) for file in event["output"] or []]
        return RunningJob(
            rule=event["rule_name"],
            name="/".join(labels),
            log=log,
            seconds=max(estimates, default=SMALL_JOB_SECONDS),
            begun=event["time"],
        )

    def share(self) -> float:
        """Return the estimated fraction of the work that is done."""
        whole = sum(
            count * self.means.get(rule, SMALL_JOB_SECONDS) for rule, count in self.jobs.items()
        )
        if not whole:
            return 0.0

        # a job at work counts in part, by its progress
        begun = [(job.seconds, job.progress) for job in self.running.values()]
        now = self.work + sum(seconds * each.share for seconds, each in begun if each)
        return min(now / whole, 1.0)

    def time_left(self, now: float) -> TimeLeft | None:
        """Return the time that the rest takes, from what jobs took so far; None without any."""
        at_work = list[Rest]()
        for job in self.running.values():
            told = None
            if job.progress is not None:
                told = job.progress.left
            at_work.append(Rest(job.rule, now - job.begun, job.seconds, told))

        # the seconds that all jobs were at work, over the time since the first of them began
        at_once = 1.0
        if self.first_begun is not None and now > self.first_begun:
            busy = sum(self.pace.taken.values()) + sum(job.elapsed for job in at_work)
            at_once = busy / (now - self.first_begun)
        return time_left(self.pace, at_work, self._waiting(), at_once)

    def _waiting(self) -> dict[str, float]:
        """Return the estimated seconds of the jobs that have not begun, by rule."""
        waiting = dict[str, float]()
        for rule, count in self.jobs.items():
            begun = [seconds for name, seconds in self.started.values() if name == rule]
            if len(begun) < count:
                whole = count * self.means.get(rule, SMALL_JOB_SECONDS)
                waiting[rule] = max(whole - sum(begun), 0.0)
        return waiting
