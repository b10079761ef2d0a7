"""The options of fppl.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Prompt tokens at each block of a part, 4 times 5 in the released code."""

    blocks: int
    """The first blocks, which have prompts; all if the backbone has fewer."""

    fusion: bool
    """Mix the prompts of all parts by softmax; without it, an image takes those of the nearest."""

    unified: float
    """Weight of the loss that draws features to the global prototypes of their classes."""

    temperature: float
    """Temperature of that loss."""

    debias_epochs: int
    """Epochs for which the server trains the head on all clients' prototypes; 0: none."""

    debias_lr: float
    """Learning rate of the server's Adam."""
