"""Progress with time left, as lines: in the terminal, and in the job's log."""

import contextlib
import faulthandler
import logging
import os
import platform
import re
import socket
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedloom.common import packages

log = logging.getLogger(__name__)

# variables with the ids of schedulers' jobs: Slurm, PBS, LSF, Grid Engine
JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
QUIET = "FEDLOOM_QUIET"  # set where a display of the whole study shows what jobs log
BAR = re.compile(r": (\d+)/(\d+) \[([\d:]+), ([\d:]+|\?) left(?:, )?([^\n]*)\]")
TAIL = 4096  # bytes at the end of a log that are searched for it


class _Lines:
    """A stream that turns tqdm's redrawing into log lines."""

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line:
            log.info(line)

    def flush(self) -> None:
        pass


LINES: dict[str, Any] = {"file": _Lines(), "mininterval": 5}


def progress(total: int, what: str, initial: int = 0) -> tqdm:
    """Return a progress bar that is printed at most every five seconds, and at its end."""
    form = "{desc}: {n_fmt}/{total_fmt} [{elapsed}, {remaining} left{postfix}]"
    return tqdm(total=total, initial=initial, desc=what, bar_format=form, **LINES)


def hide_progress() -> None:
    """Print no progress bars from here on, as of runs of milliseconds."""
    log.setLevel(logging.WARNING)


@dataclass(frozen=True)
class Progress:
    """A line of a progress bar: done of total, seconds so far and left, and further values."""

    done: int
    total: int
    elapsed: float
    left: float | None
    values: str

    @property
    def share(self) -> float:
        """The share of the job's time that is over."""
        return 0.0 if self.left is None else self.elapsed / max(self.elapsed + self.left, 1e-9)


def last_progress(log_file: Path) -> Progress | None:
    """Return the last line of a progress bar in a job's log; None if there is none yet."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
            lines = BAR.findall(file.read().decode(errors="replace"))
    except FileNotFoundError:
        return None
    if not lines:
        return None
    done, total, elapsed, left, values = lines[-1]
    return Progress(int(done), int(total), _seconds(elapsed) or 0.0, _seconds(left), values)


def _seconds(text: str) -> float | None:
    """Return the seconds of tqdm's 1:02:03; None of its question mark."""
    if text == "?":
        return None
    return float(reduce(lambda total, part: 60 * total + int(part), text.split(":"), 0))


def download_progress(what: str, start: int, total: int | None) -> tqdm:
    """Return a progress bar in bytes, of which `start` are there; of an unknown total if None."""
    return tqdm(total=total, initial=start, desc=what, unit="B", unit_scale=True, **LINES)


class _File(logging.FileHandler):
    """A log file; where the disk is full, lines are lost, and no traceback hides the error."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def log_to(path: Path | None) -> None:
    """Send FedLoom's log to the terminal, and with more detail to the file `path`.

    The file begins with the host, a scheduler's job id, and versions, which the report shows. It
    alone gets debug lines, which show tracebacks of plugins and the hook at which a plugin ended
    the process, and the stack of a crashed interpreter.
    """
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.CRITICAL if path and QUIET in os.environ else logging.INFO)
    logging.basicConfig(format="%(message)s", handlers=[terminal], force=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # names of files need not be text, and a log that cannot be written would hide the error
        file = _File(path, mode="w", encoding="utf-8", errors="backslashreplace")
        if file.stream is not None:
            faulthandler.enable(file.stream)
        file.setFormatter(terminal.formatter)
        logging.getLogger().addHandler(file)
    logging.getLogger("fedloom").setLevel(logging.DEBUG if path else logging.INFO)
    ids = (f"{name} {os.environ[name]}" for name in JOB_IDS if name in os.environ)
    log.debug("on %s", ", ".join([socket.gethostname(), *ids]))
    if path is not None:
        known = {"Python": platform.python_version()} | packages.versions()
        log.debug("with %s", ", ".join(f"{name} {version}" for name, version in known.items()))
