"""The options of fedavg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    mu: float
    """Weight mu of the proximal term of FedProx, which is mu / 2 times the squared distance from
    the received parameters. With 0, there is no such term."""

    train: str
    """Regular expression that selects the backbone's weights to train: those in whose names it
    finds a match. Empty: all weights; 'bias$': only biases (BitFit)."""

    statistics: Literal["averaged", "kept", "frozen"]
    """Treatment of the running statistics of a ResNet's batch norm: they are `averaged` with the
    weights, `kept` on the client (FedBN), or `frozen` at the backbone's. A ViT has none."""
