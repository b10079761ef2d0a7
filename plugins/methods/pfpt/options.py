"""The options of pfpt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """paper, or released: what the authors' code computes instead
    (plugins/methods/pfpt/released.py)."""

    head: Literal["averaged", "personal"]
    """personal: a head stays on its client, as Eq. 3 has it."""

    prompts: int
    """Prompts that a client picks from the pool (Appendix G)."""

    pool: int
    """Prompts in the pool before round 1; not reported, 20 in the released code."""

    hidden: int
    """Hidden units of g and alpha; not reported, 128 in the released code."""

    separation: float
    """nats, at alpha's lower bound, between two candidates as far apart as candidates are on
    average; not in the paper."""

    unused_prompts: Literal["free", "penalised"]
    """Candidates that nobody is assigned to, in Eq. 14's second sum: left out of it, or penalised
    by their log(1 - sigma(g)) as printed, where to open a new prompt costs nothing."""

    shared_pool: bool
    """released: clients train one pool in memory one after another, as the authors' code has it
    from round 2 on; false: each its copy."""

    iterations: int
    """Maximum number of turns of gradient ascent and assignment; not reported."""

    steps: int
    """Gradient steps in a turn; not reported."""

    server_lr: float
    """Learning rate of the gradient ascent (Adam); not reported, 1e-3 in the released code."""

    history: int
    """Rounds between the pools kept for the figure; doubled where they become more than 16."""
