"""The options of fedopt_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    server_optimizer: Literal["adam", "yogi", "adagrad", "sgd"]
    """Optimiser of the server."""

    server_momentum: float
    """Momentum of the server's `sgd`; it has no effect on other optimisers."""

    server_lr: float
    """Learning rate of the server. The paper does not report it; the released code has 5e-5."""

    server_betas: list[float]
    """Betas of the server's optimiser, unless it is `sgd`. The paper does not report them; the
    defaults are those of the released code."""

    server_eps: float
    """Epsilon of the server's optimiser, unless it is `sgd`. The paper does not report it; the
    default is that of the released code."""

    variant: Literal["paper", "released"]
    """The model that clients receive: the result of the server's optimiser (`paper`), or the plain
    mean of the clients (`released`, PFPT's code)."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    prompts: int
    """Number of prompt tokens at the first block; with `selection`, number of prompts that a client
    picks from the pool."""

    selection: bool
    """If true, each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Number of prompts in the pool, with `selection`."""
