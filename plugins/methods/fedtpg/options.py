"""The options of fedtpg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number m of tokens of the generated context."""

    heads: int
    """Number of heads of the cross-attention, which must divide the width of the text tower."""

    names: Literal["own", "all"]
    """Classes whose names a client trains with: those of its `own` training images, as in the
    paper, or `all`. Predictions are always among all classes."""

    weighted: bool
    """Weight clients by their numbers of training images. Algorithm 1 does not."""
