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
    """Weight of the proximal term, the distance from the received parameters (FedProx). With 0
    there is none."""

    train: str
    """Regular expression: the backbone's weights in whose names it is found are trained. Empty: all
    of them; 'bias$': biases alone (BitFit)."""

    statistics: Literal["averaged", "kept", "frozen"]
    """Running statistics of a ResNet's batch norm: `averaged` with the weights, `kept` on the
    client (FedBN), or `frozen` at the backbone's. A ViT has none."""
