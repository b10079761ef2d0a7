"""The options of fedopt_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    server_optimizer: Literal["adam", "yogi", "adagrad", "sgd"]
    """The server's optimiser."""

    server_momentum: float
    """Momentum of the server's sgd; not of the others."""

    server_lr: float
    """Learning rate of the server; not reported in the paper, 5e-5 in the released code."""

    server_betas: list[float]
    """Betas of the server's optimisers other than sgd; not reported in the paper, these in the
    released code."""

    server_eps: float
    """Epsilon of the server's optimisers other than sgd; not reported in the paper, this in the
    released code."""

    variant: Literal["paper", "released"]
    """Clients get what Adam makes, or their plain mean (PFPT's released code)."""

    weighted: bool
    """Weigh clients by their training images."""

    prompts: int
    """Prompt tokens at the first block; with selection, those that a client picks."""

    selection: bool
    """Each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Prompts in the pool; with selection only."""
