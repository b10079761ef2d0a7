"""The options of fedbabu.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    tuning_epochs: int
    """Epochs of fine-tuning before a test."""

    tuning_lr: float
    """Learning rate of fine-tuning, as a factor of that of training in round 1; 0.01 in the
    released code."""

    tuned: Literal["all", "head"]
    """The part of the model that is fine-tuned before a test."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""
