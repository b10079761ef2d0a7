"""The options of fedlora.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    rank: int
    """r, rank of the addition to a matrix."""

    alpha: float
    """The addition is scaled by alpha / r."""

    targets: list[Literal["q", "k", "v", "proj"]]
    """Matrices of the attention that are added to."""

    shared: Literal["both", "a", "b"]
    """Which of A and B the server averages; a: B and the head stay with the client (FedSA-LoRA); b:
    A stays as drawn (FFA-LoRA)."""

    ranks: list[int]
    """Ranks of the clients, in place of rank: consecutive clients share an entry, as the clients of
    a domain do."""
