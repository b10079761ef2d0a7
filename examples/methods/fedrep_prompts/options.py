"""The options of fedrep_prompts.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Prompt tokens at the first block: the body."""

    head_epochs: int
    """Epochs of the head before the body's, and before a test."""
