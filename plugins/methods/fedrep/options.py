"""The options of fedrep.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images. Algorithm 1 weights all alike."""

    head_epochs: int
    """Number of epochs that train the head, before those of the body and before a test."""

    train: str
    """Part of the model below the head that is trained: a regular expression that is found in the
    names of the backbone's weights (empty: all of them), or `prompts` for prompts alone."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
