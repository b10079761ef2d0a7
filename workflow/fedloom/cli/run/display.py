"""Show the progress of a study: redrawn in place on a terminal, or as lines in a file or pipe."""

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fedloom.planning import run_progress
from fedloom.planning.run_progress import EVENTS, RunningJob, RunProgress

# seconds between two looks at the events, and at the logs of the jobs at work
REFRESH_SECONDS = 0.5
# after so many seconds without a line, a file or a pipe gets one for each job at work
SECONDS_BETWEEN_LINES = 60.0
# a line is printed when a job of one of these rules has finished
TOLD = ("train", "dataset", "cache")
WORD_COLOURS = {"finished": "green", "failed": "red", "at work": "default"}


def follow(has_ended: Callable[[], bool], console: Console, signals: Sequence[int] = ()) -> None:
    """Show the progress of the run whose events are in EVENTS, until it has ended.

    Args:
        has_ended: returns True if the run has ended.
        console: what is drawn on.
        signals: the list to which a caller adds the signals that arrive. The display stops at the
            first one, since the jobs that a signal ends would look like failed ones.
    """
    progress = RunProgress()
    over = False
    told_at = time.monotonic()

    # the drawing, which is redrawn in place on a terminal, and left out in a file
    live = Live(console=console, auto_refresh=False, transient=True)
    with EVENTS.open("rb") as file, live:
        while not over and not signals:
            # ask this before the last read, so that no event is missed
            over = has_ended()
            told = _read_events(file, progress)
            for job in progress.running.values():
                job.look()

            # a file or a pipe, where nothing is redrawn, gets a line now and then
            silent = not told and not console.is_terminal
            if silent and time.monotonic() - told_at >= SECONDS_BETWEEN_LINES:
                told = [_line(progress, "at work", job) for job in progress.running.values()]

            # lines stay, and the drawing is below them
            for line in told:
                console.print(line, highlight=False, soft_wrap=True)
                told_at = time.monotonic()
            live.update(_drawing(progress), refresh=True)

            if not over:
                time.sleep(REFRESH_SECONDS)
    console.print(_heading(progress, over=True), highlight=False, soft_wrap=True)


def _read_events(file: BinaryIO, progress: RunProgress) -> list[Text]:
    """Process the new events in a file, and return the lines to print about them."""
    told = list[Text]()
    while (text := file.readline()).endswith(b"\n"):
        event = json.loads(text)
        if event["event"] == "note":
            told.append(Text(event["text"]))

        end_of_job = progress.apply_event(event)
        if end_of_job is not None:
            word, job = end_of_job
            if word == "failed" or job.rule in TOLD:
                told.append(_line(progress, word, job))

    # the rest of a line that is half written is still to come
    file.seek(-len(text), os.SEEK_CUR)
    return told


def watch() -> None:
    """Show the run at work in this folder until it ends, or else how the last run ended."""
    first = run_progress.last_begun()
    follow(lambda: run_progress.has_ended(first), Console())


def _line(progress: RunProgress, word: str, job: RunningJob) -> Text:
    """Return the line on a job that has ended, or is at work."""
    text = f"{job.rule} {job.name}"
    if job.progress:
        text += f": {_far(job)}"
    if word == "failed" and job.log:
        text += f"; {_reason(job.log)}see {job.log}"

    line = Text(f"{word:<9} ", WORD_COLOURS[word])
    line.append(text, "default")
    return line.append(f"  ({_share(progress)})", "dim")


def _reason(log: Path) -> str:
    """Return why a job failed, if its log has no error; else return "".

    A job that fails by itself logs an error. If there is none, the system has ended the job.
    """
    try:
        told = any(line.startswith("error: ") for line in log.read_text("utf-8").splitlines())
    except (OSError, ValueError):
        told = False

    if told:
        return ""
    return "it was killed, probably because it took too much memory, or the disk is full; "


def _far(job: RunningJob) -> str:
    """Return how far a job is, from its last report of progress; "" without one."""
    far = job.progress
    if far is None:
        return ""
    return f"{far.done}/{far.total} {far.values}".rstrip()


def _share(progress: RunProgress, over: bool = False) -> str:
    """Return how much of a study is done, and, unless it is over, the estimated time left."""
    total = sum(progress.jobs.values())
    text = f"{progress.done} of {total} jobs, {progress.share():.0%} of the work"
    if progress.failed:
        text += f", {len(progress.failed)} failed"
    if over:
        return text

    # the time left at the pace so far, unless all jobs have ended
    left = progress.time_left(time.time())
    if left is None or progress.done + len(progress.failed) >= total:
        return text
    at = datetime.now() + timedelta(seconds=left.seconds)
    about = "about " if left.is_rough else ""
    return f"{text}, {about}{timedelta(seconds=round(left.seconds))} left, until {at:%H:%M}"


def _heading(progress: RunProgress, over: bool = False) -> Text:
    """Return the line on the whole study."""
    # Snakemake tells the number of jobs once it has looked for them
    if progress.jobs:
        text = _share(progress, over)
    elif progress.is_up_to_date:
        text = "nothing to do: all is up to date"
    elif over:
        text = "no job was started"
    else:
        text = "looking for jobs to run"
    return Text(f"study {progress.study}: {text}", "bold")


def _drawing(progress: RunProgress) -> Group:
    """Return the heading, a bar of the study, and a row for every job at work."""
    table = Table.grid(*(Column(no_wrap=True) for _ in range(4)), padding=(0, 2))
    for job in progress.running.values():
        text = ""
        if job.progress and job.progress.left is not None:
            text = f"{timedelta(seconds=round(job.progress.left))} left"
        table.add_row(Text(job.rule, "cyan"), Text(job.name), Text(_far(job)), Text(text))

    # without padding, the bar would not end its line
    bar = Padding(ProgressBar(1.0, progress.share(), width=60), 0)
    return Group(_heading(progress), bar, table)
