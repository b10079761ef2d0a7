"""Progress with time left, as lines: in the terminal, and in the job's log."""

import contextlib
import faulthandler
import logging
import os
import platform
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

log = logging.getLogger(__name__)

# variables with the ids of schedulers' jobs: Slurm, PBS, LSF, Grid Engine
PACKAGES = ("fedloom", "torch", "timm", "numpy")  # whose versions numbers may depend on
JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class _Lines:
    """A stream that turns tqdm's redrawing into log lines."""

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line:
            log.info(line)

    def flush(self) -> None:
        pass


LINES: dict[str, Any] = {"file": _Lines(), "mininterval": 5, "ncols": 100}


def progress(total: int, what: str, initial: int = 0) -> tqdm:
    """Return a progress bar that is printed at most every five seconds, and at its end."""
    form = "{desc}: {n_fmt}/{total_fmt} [{elapsed}, {remaining} left{postfix}]"
    return tqdm(total=total, initial=initial, desc=what, bar_format=form, **LINES)


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
    terminal.setLevel(logging.INFO)
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
        versions = (f"{name} {version(name)}" for name in PACKAGES)
        log.debug("with %s", ", ".join([f"Python {platform.python_version()}", *versions]))
