"""The options of creff.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    features: int
    """Federated features of each class."""

    matching_steps: int
    """Steps that fit them to the gradients, I."""

    feature_lr: float
    """Learning rate of those steps."""

    retraining_epochs: int
    """Epochs in which the classifier is trained again, J."""

    retraining_lr: float
    """Learning rate of those epochs."""

    retraining_batch: int
    """Federated features in a batch of those epochs."""

    train: str
    """Trained below the head: weights of the backbone in whose names this regular expression is
    found (all by default), or 'prompts'."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""
