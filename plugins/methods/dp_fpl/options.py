"""The options of dp_fpl.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number of tokens of each context."""

    words: str
    """Text from whose embedding the first tokens start, such as 'a photo of a'; the others start
    from N(0, 0.02)."""

    rank: int
    """Rank r of the part of the personal context whose gradients are used, at most `length`."""

    variant: Literal["paper", "released"]
    """`paper` follows the paper. `released` trains as the released code does: one step in each
    round, one momentum for all clients and rounds, and for every personal context the gradient of
    the last client."""

    epsilon: float
    """Privacy budget of the paper, which sets the noise. With 0, as in the released script, nothing
    is clipped and no noise is added."""

    limit: float
    """Norm S to which gradients are clipped."""
