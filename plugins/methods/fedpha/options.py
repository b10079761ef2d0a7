"""The options of fedpha.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "algorithm_1", "released"]
    """paper: the projection keeps 1 - rho of all directions (Eq. 9); algorithm_1: it keeps rho of
    them (Algorithm 1 and Table 5, which contradict Eq. 9); released: the authors' code, which keeps
    rho of the singular vectors of the global context and reads shorter prompts behind their EOT."""

    global_length: int
    """Tokens of the global context."""

    length: int
    """Tokens of every local context, where neither list below is given."""

    lengths: list[int]
    """Tokens of the local contexts; as many consecutive clients share each entry."""

    random_lengths: list[int]
    """Least and most tokens of the local contexts, drawn per client."""

    words: str
    """Text whose embedding the first tokens of every context start from, as 'a photo of a'."""

    same_start: bool
    """All local contexts start from one draw, as in the authors' code for one length; a shorter one
    from its first tokens."""

    rho: float
    """Ratio of the projection: the share of the directions that it drops (variant paper) or keeps
    (algorithm_1, released)."""

    alpha: float
    """Distance to which the local prompt is pushed from the global one (Eq. 12)."""
