"""Progress with time left, as lines: in the terminal, and in the job's log."""

import faulthandler
import logging
import os
import platform
import re
import socket
import sys
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TextIO, cast

from tqdm import tqdm

from fedloom.machine import packages

log = logging.getLogger(__name__)

# variables with the ids of schedulers' jobs: Slurm, PBS, LSF, Grid Engine
JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
QUIET = "FEDLOOM_QUIET"  # set where a display of the whole study shows what jobs log
BAR = re.compile(r": (\d+)/(\d+) \[([\d:]+), ([\d:]+|\?) left(?:, )?([^\n]*)\]")
TAIL = 4096  # bytes at the end of a log that are searched for it


def _write(text: str) -> None:
    """Turn tqdm's redrawing into log lines."""
    if line := text.strip("\r\n "):
        log.info(line)


STREAM: Any = SimpleNamespace(write=_write, flush=lambda: None)


def progress(total: int, what: str, initial: int = 0) -> tqdm:
    """Return a progress bar that is printed at most every five seconds, and at its end."""
    form = "{desc}: {n_fmt}/{total_fmt} [{elapsed}, {remaining} left{postfix}]"
    bar = {"bar_format": form, "file": STREAM, "mininterval": 5}
    return tqdm(total=total, initial=initial, desc=what, **bar)


class Progress(NamedTuple):
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

    def seconds(text: str) -> float:  # of 1:02:03
        return float(reduce(lambda total, part: 60 * total + int(part), text.split(":"), 0))

    rest = None if left == "?" else seconds(left)
    return Progress(int(done), int(total), seconds(elapsed), rest, values)


class _LogFile(logging.FileHandler):
    """The log of a job. Where the disk is full, lines are lost, but not an error: it is printed."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Print an error that the file cannot take, unless the terminal shows it anyhow."""
        if record.levelno >= logging.ERROR and QUIET in os.environ:
            print(record.getMessage(), file=sys.stderr)


def log_to(path: Path | None) -> None:
    """Send FedLoom's log to the terminal, and to the file `path`, with debug lines.

    The file begins with the host, a scheduler's job id, and versions, which the report shows.
    """
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.CRITICAL if path and QUIET in os.environ else logging.INFO)
    logging.basicConfig(format="%(message)s", handlers=[terminal], force=True)
    logging.getLogger("fedloom").setLevel(logging.DEBUG if path else logging.INFO)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _LogFile(path, "w", encoding="utf-8", errors="backslashreplace")
        faulthandler.enable(cast(TextIO, file.stream))
        file.setFormatter(terminal.formatter)
        logging.getLogger().addHandler(file)
        ids = (f"{name} {os.environ[name]}" for name in JOB_IDS if name in os.environ)
        log.debug("on %s", ", ".join([socket.gethostname(), *ids]))
        known = {"Python": platform.python_version()} | packages.versions()
        log.debug("with %s", ", ".join(f"{name} {version}" for name, version in known.items()))
