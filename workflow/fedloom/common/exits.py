"""How a command ends: with one line for an error that a person can mend, and no traceback."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.common.errors import FedLoomError

log = logging.getLogger("fedloom")

# errors of files that a person can mend: a full disk, no permission, a file in place of a folder
MENDABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Run a command; end the process with a line and its exit status where it cannot go on."""
    out = sys.stdout
    try:
        yield
        if out is not None and not out.closed:  # a plugin may replace it, or close it
            out.flush()
    except KeyboardInterrupt:
        log.error("interrupted")
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # as in `fedloom methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except FedLoomError as error:
        log.error("error: %s", error)
        sys.exit(error.status)
    except OSError as error:
        if error.errno not in MENDABLE or error.filename is None:
            raise
        log.debug("", exc_info=error)
        log.error("error: %s: %s", error.filename, error.strerror)
        sys.exit(2)
