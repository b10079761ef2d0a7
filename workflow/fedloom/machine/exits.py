"""Exit handling: an error that a user can fix is printed as one line, without a traceback."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.common.errors import FedLoomError, escape_unprintable, in_words

log = logging.getLogger("fedloom")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Run a command; if it cannot go on, log one line and end the process with an exit status.

    The statuses are 130 after Ctrl-C, 1 if nobody reads the output, the status of a FedLoomError,
    and 2 for a missing or unreadable file. Any other error is logged and raised again.
    """
    try:
        yield
        sys.stdout.flush()

    except KeyboardInterrupt:
        log.error("interrupted")
        sys.exit(128 + signal.SIGINT)

    # nobody reads the output any more, as in `fedloom methods | head`; discard what is left of it
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

    except FedLoomError as error:
        log.error("error: %s", error)
        sys.exit(error.status)

    # the user can fix an error about a file; any other error of the system is unexpected
    except OSError as error:
        if error.filename is None:
            _tell_unexpected(error)
            raise
        log.debug("", exc_info=error)
        log.error("error: %s", escape_unprintable(f"{error.filename}: {error.strerror}"))
        sys.exit(2)

    except Exception as error:
        _tell_unexpected(error)
        raise


def _tell_unexpected(error: Exception) -> None:
    """Write an unexpected error, which is a fault of FedLoom's, to the log.

    A job that logs no error before it ends is taken for killed. The caller raises the error again,
    so Python prints the traceback on the terminal.
    """
    log.debug("", exc_info=error)
    log.error("error: %s", escape_unprintable(in_words(error)))
