"""The options of per_fedavg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images. Algorithm 1 weights all alike."""

    variant: Literal["fo", "hf"]
    """Approximation of the term with the Hessian: `fo` leaves it out (first order), `hf` takes a
    difference of two gradients."""

    alpha: float
    """Learning rate of the adaptation; that of the meta-step is `training.lr`."""

    delta: float
    """Step of the difference: the two gradients are taken at w + delta g and at w - delta g, with
    `variant: hf`."""

    adaptation_steps: int
    """Number of adaptation steps before a test."""

    train: str
    """Part of the model below the head that is trained: a regular expression that is found in the
    names of the backbone's weights (empty: all of them), or `prompts` for prompts alone."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
