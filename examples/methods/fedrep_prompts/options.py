"""The options of fedrep_prompts.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Number of prompt tokens at the first block, which are the body."""

    head_epochs: int
    """Number of epochs that train the head, before those of the body and before a test."""
