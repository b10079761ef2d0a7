"""The options of fedmaple.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of the context, and prompts at a block of either tower."""

    depth: int
    """J: number of blocks of both towers, from the first, that have prompts; no more than the
    shallower tower has."""

    words: str
    """Text whose embedding, cut to length, the first block's context starts from; what is longer,
    from N(0, 0.02)."""

    variant: Literal["paper", "released"]
    """released: the first image prompts pass the norm before the image tower's first block, and the
    words behind the context's tokens stay before every class's name."""
