"""The options of per_fedavg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images; Algorithm 1 weighs all alike."""

    variant: Literal["fo", "hf"]
    """The approximation of the Hessian: nothing (first order), or a difference of two gradients."""

    alpha: float
    """Learning rate of the adaptation; that of the meta-step is the training's."""

    delta: float
    """Half the distance of the two gradients, in lengths of the third; with hf."""

    adaptation_steps: int
    """Steps of adaptation before a test."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""
