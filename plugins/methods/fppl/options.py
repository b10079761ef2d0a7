"""The options of fppl.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Number of prompt tokens at each block, for each part of the stream. The default is that of
    the released code, 4 times 5."""

    blocks: int
    """Number of the first blocks, which have prompts; all blocks if the backbone has fewer."""

    fusion: bool
    """Whether an image mixes the prompts of all parts of the stream by softmax. With false, it
    takes those of the nearest part."""

    unified: float
    """Weight of the loss that draws features to the global prototypes of their classes."""

    temperature: float
    """Temperature of the loss that draws features to prototypes."""

    debias_epochs: int
    """Number of epochs for which the server trains the head on all clients' prototypes. With 0, it
    does not."""

    debias_lr: float
    """Learning rate of the server's Adam."""
