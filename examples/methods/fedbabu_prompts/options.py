"""The options of fedbabu_prompts.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Prompt tokens at the first block: the body."""

    tuning_epochs: int
    """Epochs of fine-tuning before a test."""

    tuned: Literal["all", "head"]
    """The part of the model that is fine-tuned before a test."""
