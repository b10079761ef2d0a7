"""The options of fedlora.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    rank: int
    """Rank r of the addition to a matrix."""

    alpha: float
    """Numerator of the scale of an addition, which is alpha / r."""

    targets: list[Literal["q", "k", "v", "proj"]]
    """Matrices of the attention that get an addition."""

    shared: Literal["both", "a", "b"]
    """Factors of an addition B A that the server averages. `both`: A and B; `a`: A alone, and B and
    the head stay with the client (FedSA-LoRA); `b`: B alone, and A stays as it was drawn
    (FFA-LoRA)."""

    ranks: list[int]
    """Ranks of the clients, in place of `rank`. The clients share the entries evenly: the first
    clients, such as those of the first domain, have the first entry, and so on."""
