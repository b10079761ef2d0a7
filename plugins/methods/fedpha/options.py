"""The options of fedpha.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "algorithm_1", "released"]
    """Projection. `paper`: it keeps 1 - rho of all directions (Eq. 9). `algorithm_1`: it keeps rho
    of them (Algorithm 1 and Table 5, which contradict Eq. 9). `released`: the authors' code, which
    keeps rho of the singular vectors of the global context and reads shorter prompts behind their
    EOT."""

    global_length: int
    """Number of tokens of the global context."""

    length: int
    """Number of tokens of every local context, if neither `lengths` nor `random_lengths` is set."""

    lengths: list[int]
    """Numbers of tokens of the local contexts. The clients share the entries evenly: the first
    clients have the first entry, and so on."""

    random_lengths: list[int]
    """Smallest and largest number of tokens of the local contexts, which are drawn for each
    client."""

    words: str
    """Text from whose embedding the first tokens of every context start, such as 'a photo of a'."""

    same_start: bool
    """Whether all local contexts start from one draw, as in the authors' code for one length; a
    shorter context then starts from its first tokens."""

    rho: float
    """Ratio of the projection: the share of the directions that it drops (variant `paper`) or keeps
    (`algorithm_1`, `released`)."""

    alpha: float
    """Distance to which the local prompt is pushed from the global one (Eq. 12)."""
