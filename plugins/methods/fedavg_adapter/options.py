"""The options of fedavg_adapter.

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

    hidden: int
    """Width of an adapter's bottleneck."""

    form: Literal["houlsby", "adaptformer"]
    """Place of the adapters: `houlsby`, behind both sub-layers of every block; or `adaptformer`,
    beside the MLP, scaled by 0.1."""
