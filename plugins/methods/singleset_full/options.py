"""The options of singleset_full.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    train: str
    """Regular expression: the backbone's weights in whose names it is found are trained. Empty: all
    of them."""
