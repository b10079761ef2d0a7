"""The options of fedtpg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """m, tokens of the generated context."""

    heads: int
    """Heads of the cross-attention; they divide the width of the text tower."""

    names: Literal["own", "all"]
    """Class names that a client trains with: those of its training images (the paper), or all;
    predictions are always among all."""

    weighted: bool
    """Weigh clients by their training images; Algorithm 1 does not."""
