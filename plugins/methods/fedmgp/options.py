"""The options of fedmgp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    groups: int
    """G, groups of prompts that a client has."""

    shared: int
    """s, groups that a client sends; at most G."""

    length: int
    """Tokens of a group's context, and prompts of its images."""

    words: str
    """Text whose embedding, cut to length, contexts start around; what is longer from N(0,
    0.02)."""

    weight: float
    """Weight of the diversity term."""

    temperature: float
    """Temperature of the softmax over cosines by which groups are drawn."""

    variant: Literal["paper", "released"]
    """released: the distance of groups is added to the loss instead of subtracted from it."""
