"""The options of pfedmma.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    blocks: int
    """S: last blocks of either tower that have adapters; no more than the shallower tower has."""

    hidden: int
    """Width of an adapter's shared layer."""

    scale: float
    """Factor of what an adapter adds; its gradients are as if this were 1."""

    words: str
    """Text before every class's name."""
