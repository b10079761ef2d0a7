"""The options of power_of_choice.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["power_of_choice"]."""

    candidates: int
    """Number d of clients that are compared, at least as many as a round has."""
