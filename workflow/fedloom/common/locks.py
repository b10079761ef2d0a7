"""Keep two processes out of one folder by a lock, on file systems that have locks."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

# the error numbers with which a file system without locks answers
NONE_HERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


@contextmanager
def file_lock(file: Path, waiting: str, say: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock of a file while the block runs.

    If another process holds the lock, pass the line `waiting` to `say`, and wait. On a file system
    without locks, such as some NFS, go on without a lock: two writers only take longer.
    """
    # where locks are missing, filelock would use a plain file, which a killed process leaves behind
    lock = FileLock(file, fallback_to_soft=False)

    # take the lock, or wait for it, or go on without one
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
