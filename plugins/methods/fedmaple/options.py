"""The options of fedmaple.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number of context tokens, and of image prompts, at a block."""

    depth: int
    """Number J of the first blocks of each tower, which have prompts; at most the number of blocks
    of the shallower tower."""

    words: str
    """Text from whose embedding, cut to `length`, the context of the first block starts; further
    tokens start from N(0, 0.02)."""

    variant: Literal["paper", "released"]
    """`paper` follows the paper. With `released`, the first image prompts pass the norm before the
    first block of the image tower, and the words behind the context tokens stay before every class
    name."""
