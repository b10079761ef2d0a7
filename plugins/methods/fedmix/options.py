"""The options of fedmix.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    ratio: float
    """lambda, share of another client's mean image."""

    means: int
    """Mean images that a client sends; one is over all of its images."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""
