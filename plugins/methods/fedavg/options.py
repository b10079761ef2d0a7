"""The options of fedavg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    mu: float
    """Weight of the distance from the received parameters (FedProx); 0: none."""

    train: str
    """Regular expression: the backbone's weights whose names it is found in are trained; all by
    default, 'bias$' for biases alone (BitFit)."""

    statistics: Literal["averaged", "kept", "frozen"]
    """Running statistics of a ResNet's batch norm: averaged with the weights, kept on the client
    (FedBN), or the backbone's; a ViT has none."""
