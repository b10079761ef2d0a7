"""The options of fedic.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    auxiliary: int
    """Images of each class that the server has, at most, of held-out clients."""

    server_steps: int
    """Steps of Adam in each of the server's three phases."""

    server_lr: float
    """Learning rate of the three phases."""

    server_batch: int
    """Images in a batch of the server."""

    temperature: float
    """T of the distillation."""

    balance: float
    """Weight of the distillation against the labels of the server's images."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""
