"""The options of fedbabu_prompts.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Number of prompt tokens at the first block, which are the body."""

    tuning_epochs: int
    """Number of epochs of fine-tuning before a test."""

    tuned: Literal["all", "head"]
    """Part of the model that is fine-tuned before a test."""
