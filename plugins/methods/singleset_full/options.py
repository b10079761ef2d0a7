"""The options of singleset_full.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    train: str
    """Regular expression that selects the backbone's weights to train: those in whose names it
    finds a match. Empty: all weights; 'bias$': only biases (BitFit)."""
