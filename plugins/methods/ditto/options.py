"""The options of ditto.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    lam: float
    """Strength lambda of the pull of a personal model towards the shared one. With 0, personal
    models are trained locally."""

    weighted: bool
    """Weight clients by their numbers of training images. Algorithm 1 does not."""

    prompts: int
    """Number of prompt tokens at the first block."""
