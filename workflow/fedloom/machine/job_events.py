"""Write and read a job's events: JSON lines for programs, beside the log for people.

An event goes with a line of the log: `log.info("3 of 4", **with_event("progress", done=3))`.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.common.json_types import JsonDict

# only so many bytes at the end of the events are searched for the last progress
TAIL = 4096

# the name of an event under the key `event`, and its values under other keys
Event = JsonDict


def with_event(event_name: str, **values: object) -> dict[str, Any]:
    """Return keyword arguments for a logger's call, which then writes an event beside its line."""
    return {"extra": {"event": {"event": event_name, **values}}}


def event_file(log_file: Path) -> Path:
    """Return the file of a job's events, which lies beside the job's log."""
    return log_file.with_suffix(".jsonl")


class EventHandler(logging.FileHandler):
    """Write the events of a job's log records as JSON lines; records without one are left out."""

    def __init__(self, log_file: Path) -> None:
        """Begin the file of events beside a log."""
        super().__init__(event_file(log_file), "w", encoding="utf-8")
        self.addFilter(lambda record: hasattr(record, "event"))

    def format(self, record: logging.LogRecord) -> str:
        """Return the event of a record as one line of JSON."""
        return json.dumps(getattr(record, "event"))  # noqa: B009 (no attribute that types know)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Ignore an event that cannot be written; on a full disk, the job's own error says so."""


def read_events(log_file: Path) -> list[Event]:
    """Return the events of a job's last attempt, from the file beside its log.

    Return no event if the job has not begun.
    """
    try:
        text = event_file(log_file).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return list(_parsed(text.split("\n")))


def _parsed(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events in some lines; leave out a line that is half written or cut off."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


class Progress(NamedTuple):
    """How far a job is."""

    # the steps that are done, of all steps
    done: int
    total: int
    # the seconds so far, and the seconds left at the pace so far; None without a pace
    elapsed: float
    left: float | None
    # further values, such as the loss, as text
    values: str

    @property
    def share(self) -> float:
        """The share of the job's time that is over."""
        if self.left is None:
            return 0.0
        return self.elapsed / max(self.elapsed + self.left, 1e-9)


def last_progress(log_file: Path) -> Progress | None:
    """Return the progress that a job reported last, from the file beside its log.

    Return None if the job has not reported any yet.
    """
    # only the end is read, as a display asks twice a second
    try:
        with event_file(log_file).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except FileNotFoundError:
        return None

    for event in reversed(list(_parsed(lines))):
        if event["event"] == "progress":
            return Progress(**{name: event[name] for name in Progress._fields})
    return None
