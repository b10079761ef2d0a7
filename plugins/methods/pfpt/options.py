"""The options of pfpt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """`paper` follows the paper; `released` follows the authors' code
    (plugins/methods/pfpt/released.py)."""

    head: Literal["averaged", "personal"]
    """`averaged`: the server averages heads; `personal`: a head stays on its client, as in Eq.
    3."""

    prompts: int
    """Number of prompts that a client picks from the pool (Appendix G)."""

    pool: int
    """Number of prompts in the pool before round 1. The paper does not report it; the released code
    has 20."""

    hidden: int
    """Number of hidden units of the networks g and alpha. The paper does not report it; the
    released code has 128."""

    separation: float
    """Sets a lower bound of alpha, which is not in the paper. At this bound, two candidates that
    are as far apart as candidates are on average have this distance in nats."""

    unused_prompts: Literal["free", "penalised"]
    """How the second sum of Eq. 14 treats candidates to which no client is assigned: it leaves them
    out (`free`), or it has log(1 - sigma(g)) for them too, as printed (`penalised`), so that a new
    prompt costs nothing."""

    shared_pool: bool
    """Whether all clients of a round train the same pool, one after another, as in the authors'
    code from round 2 on. With false, each trains a copy. It has an effect only with `variant:
    released`."""

    iterations: int
    """Largest number of iterations; each does gradient ascent and then assigns prompts. The paper
    does not report it."""

    steps: int
    """Number of gradient steps in an iteration. The paper does not report it."""

    server_lr: float
    """Learning rate of the gradient ascent (Adam). The paper does not report it; the released code
    has 1e-3."""

    history: int
    """Number n: the pools of every n-th round are kept for figures. It doubles whenever more than
    16 pools are kept."""
