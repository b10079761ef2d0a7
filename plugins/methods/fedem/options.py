"""The options of fedem.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    components: int
    """M, number of models that are mixed."""

    newcomer_steps: int
    """Steps of EM for the weights alone, before a test."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""

    head: Literal["zero", "drawn"]
    """Heads start at zero, as in all methods, or drawn apart, as in the paper."""
