"""The exceptions that people are meant to read."""


class FedLoomError(Exception):
    """Something the user can mend.

    The message is one line that names the file, key, method or client and says what to do; the
    command line prints it without a traceback and exits with `status`.
    """

    status = 2


class NotFiniteError(FedLoomError):
    """Training has diverged: a number is NaN or infinite."""


class StoppedError(FedLoomError):
    """A scheduler asked the job to stop before its work was done; the next attempt goes on."""

    status = 75  # EX_TEMPFAIL of sysexits.h: try again
