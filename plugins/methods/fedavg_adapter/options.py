"""The options of fedavg_adapter.

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

    hidden: int
    """Width of the bottleneck."""

    form: Literal["houlsby", "adaptformer"]
    """houlsby: behind both sub-layers of every block; adaptformer: beside the MLP, scaled by
    0.1."""
