"""The options of fedbabu.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    tuning_epochs: int
    """Number of epochs of fine-tuning before a test."""

    tuning_lr: float
    """Learning rate of fine-tuning before a test, as a multiple of `training.lr`. The released code
    has 0.01."""

    tuned: Literal["all", "head"]
    """Part of the model that is fine-tuned before a test."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
