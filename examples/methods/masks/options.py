"""The options of masks.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["masks"]."""

    scale: float
    """Standard deviation of a mask."""
