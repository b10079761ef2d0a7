"""Log a process and its progress as lines: to the terminal, and to the file of a job's log."""

import faulthandler
import io
import logging
import os
import platform
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from tqdm import tqdm

from fedloom.machine import packages
from fedloom.machine.job_events import EventHandler, with_event

log = logging.getLogger(__name__)

# the variables in which schedulers give the id of a job: Slurm, PBS, LSF, Grid Engine
JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# this variable is set if a display of the whole study shows what jobs log
QUIET_VARIABLE = "FEDLOOM_QUIET"


class _LoggedBar(tqdm):
    """A progress bar that is not drawn in place: each state is a line of the log, and an event."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log the state of the bar; an empty message is tqdm's way to clear a line."""
        if msg == "":
            return

        # the line is for people, the event for the display and the report
        state = self.format_dict
        event = with_event(
            "progress",
            done=state["n"],
            total=state["total"],
            elapsed=state["elapsed"],
            left=_seconds_left(state),
            values=state["postfix"] or "",
        )
        log.info(str(self), **event)


def _seconds_left(state: Mapping[str, Any]) -> float | None:
    """Return the seconds left at the pace so far, as tqdm computes them; None without a pace."""
    rate = state["rate"]
    if rate is None and state["elapsed"]:
        rate = (state["n"] - state["initial"]) / state["elapsed"]
    if not rate:
        return None
    return (state["total"] - state["n"]) / rate


def progress(total: int, what: str, initial: int = 0) -> tqdm:
    """Return a progress bar that is logged at most every five seconds, and at its end."""
    # tqdm writes ends of lines beside the bar, which nobody needs
    nowhere = io.StringIO()
    return _LoggedBar(
        total=total,
        initial=initial,
        desc=what,
        bar_format="{desc}: {n_fmt}/{total_fmt} [{elapsed}, {remaining} left{postfix}]",
        mininterval=5,
        file=nowhere,
    )


class _LogFile(logging.FileHandler):
    """The log of a job. If the disk is full, lines are lost, but an error is printed instead."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Print an error that cannot be written to the file, unless the terminal shows it."""
        if record.levelno >= logging.ERROR and QUIET_VARIABLE in os.environ:
            print(record.getMessage(), file=sys.stderr)


def log_to(path: Path | None) -> None:
    """Send FedLoom's log to the terminal, and to the file `path`, with debug lines.

    The file begins with the host, a scheduler's job id, and versions. Beside it are the job's
    events, which the display and the report read (see job_events).
    """
    # the terminal; it stays silent if a display shows the lines of the file
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.INFO)
    if path and QUIET_VARIABLE in os.environ:
        terminal.setLevel(logging.CRITICAL)
    logging.basicConfig(format="%(message)s", handlers=[terminal], force=True)
    logging.getLogger("fedloom").setLevel(logging.INFO)
    if path is None:
        return

    # debug lines are for the file alone
    logging.getLogger("fedloom").setLevel(logging.DEBUG)

    # the file of events is made first: the display reads it as soon as the log exists
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger().addHandler(EventHandler(path))
    file = _LogFile(path, "w", encoding="utf-8", errors="backslashreplace")
    faulthandler.enable(cast(TextIO, file.stream))
    file.setFormatter(terminal.formatter)
    logging.getLogger().addHandler(file)

    # where the job runs, and with what
    ids = (f"{name} {os.environ[name]}" for name in JOB_IDS if name in os.environ)
    host = ", ".join([socket.gethostname(), *ids])
    log.debug("on %s", host, **with_event("machine", text=host))
    known = {"Python": platform.python_version()} | packages.versions()
    versions = ", ".join(f"{name} {version}" for name, version in known.items())
    log.debug("with %s", versions, **with_event("versions", text=versions))
