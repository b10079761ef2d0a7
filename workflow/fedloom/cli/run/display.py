"""Show the course of a study on a terminal, redrawn in place; elsewhere as lines."""

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.run.run_progress import EVENTS, Job, RunProgress, ended, last_begun

POLL = 0.5  # seconds between two looks at the events, and at the logs of the jobs at work
QUIET = 60.0  # seconds without a line, after which a file or a pipe gets one for each job at work
TOLD = ("train", "dataset", "cache")  # rules whose ends are worth a line
COLOURS = {"finished": "green", "failed": "red", "at work": "default"}


def follow(ended: Callable[[], bool], console: Console, signals: Sequence[int] = ()) -> None:
    """Show the course of the run whose events are in EVENTS until it has ended.

    The display stops at the first of `signals`: jobs that it ends would seem to have failed.
    """
    course, over, told_at = RunProgress(), False, time.monotonic()
    live = Live(console=console, auto_refresh=False, transient=True)  # shows nothing in a file
    with EVENTS.open("rb") as file, live:
        while not over and not signals:
            over, told = (
                ended(),
                list[Text](),
            )  # ended before the last read, so that nothing is lost
            while (event := file.readline()).endswith(b"\n"):
                read = json.loads(event)
                if read["event"] == "note":
                    told.append(Text(read["text"]))
                end = course.apply_event(read)
                if end is not None and (end[0] == "failed" or end[1].rule in TOLD):
                    told.append(_line(course, *end))
            file.seek(-len(event), os.SEEK_CUR)  # of a line, the rest is still to be written
            for job in course.running.values():
                job.look()
            if not (told or console.is_terminal or time.monotonic() - told_at < QUIET):
                told = [_line(course, "at work", job) for job in course.running.values()]
            for line in told:
                console.print(line, highlight=False, soft_wrap=True)
                told_at = time.monotonic()
            live.update(_drawing(course), refresh=True)
            if not over:
                time.sleep(POLL)
    console.print(_heading(course, over=True), highlight=False, soft_wrap=True)


def watch() -> None:
    """Show the run at work in this folder until it ends, or how the last one ended."""
    first = last_begun()
    follow(lambda: ended(first), Console())


def _line(course: RunProgress, word: str, job: Job) -> Text:
    """Return the line on a job that has ended, or is at work."""
    far = f": {_far(job)}" if job.progress else ""
    see = f"; {_reason(job.log)}see {job.log}" if word == "failed" and job.log else ""
    line = Text(f"{word:<9} ", COLOURS[word]).append(f"{job.rule} {job.name}{far}{see}", "default")
    return line.append(f"  ({_share(course)})", "dim")


def _reason(log: Path) -> str:
    """Return why a job failed whose log has no error: nobody but the system ends it in silence."""
    try:
        told = any(line.startswith("error: ") for line in log.read_text("utf-8").splitlines())
    except (OSError, ValueError):
        told = False
    return "" if told else "it was killed, probably for memory, or the disk is full; "


def _far(job: Job) -> str:
    """Return how far a job is, by the last line of its progress."""
    return f"{far.done}/{far.total} {far.values}".rstrip() if (far := job.progress) else ""


def _share(course: RunProgress, over: bool = False) -> str:
    """Return how much is done, and the time left by the estimates of the jobs to come."""
    total = sum(course.jobs.values())
    text = f"{course.done} of {total} jobs, {course.share():.0%} of the work"
    text += f", {len(course.failed)} failed" if course.failed else ""
    left = None if over else course.seconds_left(time.time())
    if left is not None and course.done + len(course.failed) < total:
        at = datetime.now() + timedelta(seconds=left)
        text += f", {timedelta(seconds=round(left))} left, until {at:%H:%M}"
    return text


def _heading(course: RunProgress, over: bool = False) -> Text:
    """Return the line on the whole study."""
    text = "no job was begun" if over else "looking for what is to be done"
    return Text(f"study {course.study}: {_share(course, over) if course.jobs else text}", "bold")


def _drawing(course: RunProgress) -> Group:
    """Return the heading, a bar of the study, and a row for every job at work."""
    table = Table.grid(*(Column(no_wrap=True) for _ in range(4)), padding=(0, 2))
    for job in course.running.values():
        left = job.progress.left if job.progress else None
        text = "" if left is None else f"{timedelta(seconds=left)} left"
        table.add_row(Text(job.rule, "cyan"), Text(job.name), Text(_far(job)), Text(text))
    bar = Padding(ProgressBar(1.0, course.share(), width=60), 0)  # alone, it would not end its line
    return Group(_heading(course), bar, table)
