"""The options of fedvpt_deep.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images; the paper's FedAvg does not."""

    prompts: int
    """Prompt tokens at every block."""

    blocks: list[int]
    """blocks, counted from 1, that get separate prompts; empty: all."""
