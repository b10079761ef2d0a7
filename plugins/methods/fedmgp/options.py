"""The options of fedmgp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    groups: int
    """Number G of prompt groups of a client."""

    shared: int
    """Number s of groups that a client sends, at most `groups`."""

    length: int
    """Number of context tokens, and of image prompts, in a group."""

    words: str
    """Text around whose embedding, cut to `length`, contexts start; further tokens start from N(0,
    0.02)."""

    weight: float
    """Weight of the diversity term."""

    temperature: float
    """Temperature of the softmax over cosines by which groups are drawn."""

    variant: Literal["paper", "released"]
    """`paper` follows the paper. With `released`, the distance of groups is added to the loss, not
    subtracted from it."""
