"""The options of trimmed_mean.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["trimmed_mean"]."""

    trim: float
    """Share beta of a round's values that is left out at either end. 0.5 leaves the median."""
