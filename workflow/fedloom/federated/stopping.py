"""End a job of training between two rounds when a scheduler asks for it.

A scheduler takes a job's allocation away with SIGTERM, and can be told to send SIGUSR1 some minutes
before a job's time limit. Killed at once, the job would lose the round that it is at.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.common.errors import StoppedError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stop:
    """Remember the signal that asked this process to stop.

    Attributes:
        asked_by: the name of the signal, such as "SIGTERM"; None while there was none.
    """

    asked_by: str | None = None

    def check(self, name: str, done: int, last: int) -> None:
        """End the job after round `done`, whose checkpoint is written, if a signal asked for it.

        Args:
            name: of the run, for the error.
            last: the job's last round, after which nothing is left to be done by another job.

        Raises:
            StoppedError: a signal came, and rounds are left.
        """
        if self.asked_by is not None and done < last:
            raise StoppedError(
                f"{name}: stopped by {self.asked_by} after round {done} of {last}; start the job "
                "again to resume from there"
            )


@contextmanager
def after_round() -> Iterator[Stop]:
    """Let signals that end a process only be remembered within the block.

    Yields:
        What `check` is called on after every round.
    """
    stop = Stop()

    def remember(number: int, _: object) -> None:
        stop.asked_by = signal.Signals(number).name

    before = {number: signal.signal(number, remember) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
