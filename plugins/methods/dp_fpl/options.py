"""The options of dp_fpl.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of each context."""

    words: str
    """Text whose embedding the first tokens start from; the others from N(0, 0.02)."""

    rank: int
    """r, rank of the part of the personal context whose gradients are used; at most length."""

    variant: Literal["paper", "released"]
    """released: the steps of the released code, one a round, with a momentum of all clients and
    rounds and the last client's gradient of every personal context."""

    epsilon: float
    """The paper's privacy budget, which sets the noise; 0: neither clip nor noise, as the released
    script's default."""

    limit: float
    """S, norm to which gradients are clipped."""
