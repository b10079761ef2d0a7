"""The options of fedrod.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    gamma: float
    """Exponent of the classes' shares in the balanced softmax; 0: plain cross-entropy."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""
