"""The options of fedpr.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    dropped_share: float
    """Share of the directions that updates may not take: the strongest directions of the global
    prompts."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    prompts: int
    """Number of prompt tokens at the first block."""
