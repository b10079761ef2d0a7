"""The options of fedrod.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    gamma: float
    """Exponent of the classes' shares in the balanced softmax. With 0, the loss is the plain
    cross-entropy."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
