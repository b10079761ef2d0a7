"""The options of dropout.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["dropout"]."""

    lost: float
    """Probability that a client's upload does not arrive."""

    partial: float
    """Probability that a client does only a part of its local steps, a share drawn uniformly."""

    trace: list[list[int]]
    """Ids of the available clients, one list for each round. After the last list, the first is used
    again. Empty: all clients are always available."""
