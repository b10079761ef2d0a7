"""The options of fedvpt_deep.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images. The paper's FedAvg does not."""

    prompts: int
    """Number of prompt tokens at every block."""

    blocks: list[int]
    """Blocks that get separate prompts, counted from 1. Empty: all blocks."""
