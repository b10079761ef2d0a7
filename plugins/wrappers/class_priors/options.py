"""The options of class_priors.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["class_priors"]."""

    test: Literal["own", "none"]
    """The offset of a client's logits at test. `own`: tau times the log of the client's shares of
    the classes. `none`: no offset."""

    train: bool
    """Whether an offset is also added to the logits in a client's training loss. The option `form`
    says which offset."""

    form: Literal["shares", "fedlc"]
    """The offset in training. `shares`: tau times the log of the client's share of each class.
    `fedlc`: FedLC's calibration, -tau n^(-1/4) for a class of n images."""

    tau: float
    """Factor of the offsets, in training and at test."""

    floor: float
    """Smallest share of a class: smaller ones, such as that of a class that a client lacks, count
    as this one. The shares are not divided by their new sum, which would change no softmax."""
