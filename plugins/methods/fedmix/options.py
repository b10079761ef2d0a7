"""The options of fedmix.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    ratio: float
    """Share lambda of another client's mean image in the mixture."""

    means: int
    """Number of mean images that a client sends. With 1, the mean is over all of its images."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
