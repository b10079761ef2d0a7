"""Name temporary files beside results, and tell whether the process that writes one still runs.

A name says who writes: `.images.arrow.<system>-<process>-<random>.fedloom-tmp`. `<system>` is a
digest of the running system and of the numbering of its processes. It differs on another machine,
in another container and after a restart, where the same process number means another process.
"""

import functools
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

ENDING = ".fedloom-tmp"
TEMPORARY_NAME = re.compile(rf"\..+\.(?P<system>\w+)-(?P<process>\d+)-\w+{re.escape(ENDING)}")
# a writer on another system counts as killed after so many seconds without a write
ABANDONED = 24 * 3600


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses."""
    writer = f"{_system()}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f".{path.name}.{writer}{ENDING}")


@functools.cache
def _system() -> str:
    """Return a digest of the running system, within which a process number means one process.

    If the system does not identify itself, return a random text. All other processes then count as
    processes of another system.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text()
        numbering = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return secrets.token_hex(4)
    return hashlib.sha256(f"{started}{numbering}".encode()).hexdigest()[:8]


def is_abandoned(path: Path) -> bool:
    """Return True if the process that was writing a temporary file or folder has ended.

    A process on another system cannot be looked up: it counts as ended after ABANDONED seconds
    without a write.
    """
    name = TEMPORARY_NAME.fullmatch(path.name)
    if name is not None and name["system"] == _system():
        # psutil also finds another user's process, whose folder in /proc may be hidden
        return not psutil.pid_exists(int(name["process"]))
    return time.time() - _last_write(path) > ABANDONED


def _last_write(path: Path) -> float:
    """Return when a file, or the newest file in a folder, was written, in seconds since 1970.

    If the path no longer exists, return the present time.
    """
    times = list[float]()
    for file in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            times.append(file.stat().st_mtime)
    return max(times, default=time.time())


def leftovers(folder: Path) -> Iterator[Path]:
    """Yield the temporary files and folders that lie anywhere below a folder."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if name.startswith(".") and name.endswith(ENDING):
                yield Path(place, name)

        # os.walk descends only into the folders that stay in this list
        folders[:] = [name for name in folders if not name.endswith(ENDING)]


def size_in_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


@functools.cache
def sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder.

    The call is cached: a process does this once for each folder, before it writes there.
    """
    for path in folder.glob(f".*{ENDING}"):
        if is_abandoned(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents; another process may remove it too."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
