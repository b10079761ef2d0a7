"""Temporary names beside results, and whether the process that writes there still lives.

A name says who writes: `.images.arrow.<system>-<process>-<random>.fedloom-tmp`. `<system>` is a
digest of the running system and its processes' numbering, so that processes of another machine, of
another container, and from before a restart are not taken for those of this one.
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
# seconds without a write, after which a writer elsewhere counts as killed
ABANDONED = 24 * 3600


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses."""
    writer = f"{_system()}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f".{path.name}.{writer}{ENDING}")


@functools.cache
def _system() -> str:
    """Return a digest of the running system, in which a process's number means one process.

    Where the system does not say, it is a random one: all other processes count as elsewhere.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text()
        numbering = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return secrets.token_hex(4)
    return hashlib.sha256(f"{started}{numbering}".encode()).hexdigest()[:8]


def abandoned(path: Path) -> bool:
    """Return True if the process that was writing a temporary file or folder has ended.

    Of a process elsewhere, which cannot be asked, it is True after a day without a write.
    """
    name = TEMPORARY_NAME.fullmatch(path.name)
    if name is not None and name["system"] == _system():
        # also of another user's process, whose folder in /proc may be hidden
        return not psutil.pid_exists(int(name["process"]))
    return time.time() - _last_write(path) > ABANDONED


def _last_write(path: Path) -> float:
    """Return when a file, or the newest file of a folder, was written, in seconds; now if gone."""
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

        # os.walk goes into the folders that are left in the list
        folders[:] = [name for name in folders if not name.endswith(ENDING)]


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


@functools.cache
def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder; once per process, before it writes there."""
    for path in folder.glob(f".*{ENDING}"):
        if abandoned(path):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents; another process may remove it too."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
