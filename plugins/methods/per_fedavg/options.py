"""The options of per_fedavg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images. Algorithm 1 does not."""

    variant: Literal["fo", "hf"]
    """Approximation of the term with the Hessian: `fo` leaves it out (first order), `hf` takes a
    difference of two gradients."""

    alpha: float
    """Learning rate of the adaptation; that of the meta-step is `training.lr`."""

    delta: float
    """Step delta of the difference of gradients, with `variant: hf`: the gradients are taken at w +
    delta g and at w - delta g."""

    adaptation_steps: int
    """Number of adaptation steps before a test."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
