"""The options of label_flip.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["label_flip"]."""

    share: float
    """Share of the participating clients that attack, drawn by the seed."""

    flip: Literal["opposite", "next"]
    """New label of an image of class c: C - 1 - c (`opposite`), or c + 1, with the first class
    after the last (`next`)."""
