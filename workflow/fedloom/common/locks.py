"""Locks that keep two processes out of one folder, on file systems that have them."""

import errno
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

NONE_HERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


@contextmanager
def held(file: Path, waiting: str, say: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock that a file stands for, after whoever holds it.

    A file system without locks, as NFS may be, is no error: files are renamed into place, and a
    job's carry a digest of what made them, so that two writers cost time and no result.

    Args:
        waiting: what is said before another one is waited for.
        say: takes a line for a person.
    """
    # filelock's own substitute for a missing lock is a file, which a killed process leaves for good
    lock = FileLock(file, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(waiting)
        lock.acquire()
    except OSError as error:
        if error.errno not in NONE_HERE:
            raise
        say(f"{file}: there are no locks on this file system ({error.strerror}); going on without")
    try:
        yield
    finally:
        lock.release()


def is_held(file: Path) -> bool:
    """Return True if a process holds the lock that a file stands for; never without locks."""
    if not file.exists():
        return False
    with file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NONE_HERE | {errno.EWOULDBLOCK}:
                raise
            return error.errno == errno.EWOULDBLOCK
    return False
