"""What `fedloom doctor` looks at; every look yields findings."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A line of `fedloom doctor`.

    Attributes:
        text: what is so and, where that needs a hand, what to do.
    """

    text: str
    well: bool = True
