"""Show the course of a study on a terminal, redrawn in place; elsewhere as lines."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedloom.commands.course import EVENTS, Course, Job, ended, last_begun

POLL = 0.5  # seconds between two looks at the events
LOOK = 2.0  # seconds between two looks at the logs of the jobs at work
QUIET_FOR = 60.0  # seconds without a line, after which lines tell of the jobs at work
TOLD = ("train", "dataset", "cache")  # rules whose ends are worth a line

COLOURS = {"finished": "green", "stopped": "yellow", "failed": "red"}


def follow(ended: Callable[[], bool], console: Console) -> None:
    """Show the course of the run whose events are in EVENTS until it has ended."""
    course = Course()
    if not console.is_terminal:
        _lines(course, ended, console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for news in _events(course, ended):
            for line in news:
                console.print(line, highlight=False)
            live.update(_drawing(course), refresh=True)
    console.print(_heading(course, over=True), highlight=False)


def watch() -> None:
    """Show the run at work in this folder until it ends, or how the last one ended."""
    first = last_begun()
    follow(lambda: ended(first), Console())


def _lines(course: Course, ended: Callable[[], bool], console: Console) -> None:
    """Print a line for every end of a job, and for the jobs at work when nothing ends."""
    last, announced = time.monotonic(), False
    for news in _events(course, ended):
        if course.jobs and not announced:
            announced = True
            news.insert(0, Text(_jobs(course)))
        if not news and time.monotonic() - last > QUIET_FOR:
            news = [Text(f"at work   {_named(job)}") for job in course.running.values()]
            news.append(_heading(course))
        for line in news:
            last = time.monotonic()
            console.print(line, highlight=False, soft_wrap=True)


def _events(course: Course, ended: Callable[[], bool]) -> Iterator[list[Text]]:
    """Yield the lines on what has ended since the last time, until the run ends."""
    with EVENTS.open(encoding="utf-8") as file:
        over, part, looked = False, "", 0.0
        while not over:
            over = ended()  # before the last read, so that nothing is lost
            lines = []
            while text := file.readline():
                part += text
                if not part.endswith("\n"):  # the rest is still to be written
                    break
                end, part = course.take(json.loads(part)), ""
                if end is not None and (end[0] == "failed" or end[1].rule in TOLD):
                    lines.append(_line(course, *end))
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                course.look()
            yield lines
            if not over:
                time.sleep(POLL)


def _line(course: Course, word: str, job: Job) -> Text:
    """Return the line on a job that has ended."""
    line = Text(f"{word:<9} ", COLOURS[word]).append(_named(job), "default")
    if word == "failed" and job.log:
        line.append(f"; see {job.log}", "default")
    return line.append(f"  ({_share(course)})", "dim")


def _named(job: Job) -> str:
    """Return a job's rule, name, and how far it is."""
    progress = job.progress
    far = f": {progress.done}/{progress.total} {progress.values}".rstrip() if progress else ""
    return f"{job.rule} {job.name}{far}"


def _jobs(course: Course) -> str:
    """Return the numbers of jobs by rule."""
    return f"{course.total} jobs: " + ", ".join(f"{n} {rule}" for rule, n in course.jobs.items())


def _share(course: Course, over: bool = False) -> str:
    """Return how much is done, and the time left by the estimates of the jobs to come."""
    left = None if over else course.seconds_left(time.time())
    parts = [f"{course.done} of {course.total} jobs", f"{course.share():.0%} of the work"]
    if course.failed:
        parts.append(f"{len(course.failed)} failed")
    if left is not None and course.done + len(course.failed) < course.total:
        at = datetime.now() + timedelta(seconds=left)
        parts.append(f"{timedelta(seconds=round(left))} left, until {at:%H:%M}")
    return ", ".join(parts)


def _heading(course: Course, over: bool = False) -> Text:
    """Return the line on the whole study."""
    if not course.jobs:
        text = "no job was begun" if over else "looking for what is to be done"
        return Text(f"study {course.study}: {text}")
    return Text(f"study {course.study}: {_share(course, over)}", "bold")


def _drawing(course: Course) -> Group:
    """Return the heading, a bar of the study, and a row for every job at work."""
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(no_wrap=True)
    for job in course.running.values():
        progress = job.progress
        far, left = "", ""
        if progress is not None:
            far = f"{progress.done}/{progress.total} {progress.values}"
            left = "" if progress.left is None else f"{timedelta(seconds=progress.left)} left"
        table.add_row(Text(job.rule, "cyan"), Text(job.name), Text(far), Text(left))
    return Group(_heading(course), ProgressBar(1.0, course.share(), width=60), table)
