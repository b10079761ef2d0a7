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
    """Lower bound of alpha, given as the distance in nats, at that bound, of two candidates that
    are as far apart as candidates are on average. It is not in the paper."""

    unused_prompts: Literal["free", "penalised"]
    """Candidates to which no client is assigned, in the second sum of Eq. 14: left out of it
    (`free`), or `penalised` by log(1 - sigma(g)) as printed, where a new prompt costs nothing."""

    shared_pool: bool
    """Whether clients train one pool in memory, one after another, as the authors' code does from
    round 2 on. With false, each trains a copy. It has an effect with `variant: released` alone."""

    iterations: int
    """Largest number of turns of gradient ascent and assignment. The paper does not report it."""

    steps: int
    """Number of gradient steps in a turn. The paper does not report it."""

    server_lr: float
    """Learning rate of the gradient ascent (Adam). The paper does not report it; the released code
    has 1e-3."""

    history: int
    """Number of rounds between the pools that are kept for the figure. It doubles whenever more
    than 16 pools are kept."""
