"""Exit handling: an error that a user can fix is printed as one line, without a traceback."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.common.errors import FedLoomError, in_words, legible

log = logging.getLogger("fedloom")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Run a command; end the process with a line and its exit status where it cannot go on."""
    try:
        yield
        sys.stdout.flush()

    except KeyboardInterrupt:
        log.error("interrupted")
        sys.exit(128 + signal.SIGINT)

    # nobody reads on, as in `fedloom methods | head`; what is left to flush goes nowhere
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)

    except FedLoomError as error:
        log.error("error: %s", error)
        sys.exit(error.status)

    # a file that is missing or cannot be read is the user's; other errors of the system are not
    except OSError as error:
        if error.filename is None:
            _tell_unexpected(error)
            raise
        log.debug("", exc_info=error)
        log.error("error: %s", legible(f"{error.filename}: {error.strerror}"))
        sys.exit(2)

    except Exception as error:
        _tell_unexpected(error)
        raise


def _tell_unexpected(error: Exception) -> None:
    """Write an error that is FedLoom's own to the log, whose silence means that a job was killed.

    Python prints the traceback on the terminal, as it is raised again.
    """
    log.debug("", exc_info=error)
    log.error("error: %s", legible(in_words(error)))
