"""The options of creff.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    features: int
    """Number of federated features of each class."""

    matching_steps: int
    """Number I of steps that fit the federated features to the clients' gradients."""

    feature_lr: float
    """Learning rate of the steps that fit the federated features."""

    retraining_epochs: int
    """Number J of epochs in which the classifier is trained again."""

    retraining_lr: float
    """Learning rate of the epochs that train the classifier again."""

    retraining_batch: int
    """Number of federated features in a batch when the classifier is trained again."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""
