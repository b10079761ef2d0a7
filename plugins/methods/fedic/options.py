"""The options of fedic.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    auxiliary: int
    """Largest number of images of each class that the server holds; they are training images of
    held-out clients."""

    server_steps: int
    """Number of Adam steps in each of the server's three phases."""

    server_lr: float
    """Learning rate of the server's three phases."""

    server_batch: int
    """Number of images in a batch of the server."""

    temperature: float
    """Temperature T of the distillation."""

    balance: float
    """Weight of the distillation loss. The loss on the labels of the server's images has the weight
    1 - balance."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
