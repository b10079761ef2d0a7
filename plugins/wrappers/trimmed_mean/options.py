"""The options of trimmed_mean.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["trimmed_mean"]."""

    trim: float
    """Share beta of a round's updates whose values are left out at each end, for every parameter.
    With 0.5, the median is left."""
