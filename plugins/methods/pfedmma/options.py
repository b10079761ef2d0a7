"""The options of pfedmma.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    blocks: int
    """Number S of the last blocks of each tower, which have adapters; at most the number of blocks
    of the shallower tower."""

    hidden: int
    """Width of an adapter's shared layer."""

    scale: float
    """Factor of an adapter's output. Gradients are as if it were 1."""

    words: str
    """Text before every class name."""
