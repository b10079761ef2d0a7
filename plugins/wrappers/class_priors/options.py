"""The options of class_priors.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["class_priors"]."""

    test: Literal["own", "none"]
    """What a client adds to its logits at test: tau times the log of its own shares of the classes
    (`own`), or nothing (`none`)."""

    train: bool
    """Whether a client adds to the logits in its training loss what the option form names."""

    form: Literal["shares", "fedlc"]
    """What is added in training: tau log(share) of each class (`shares`), or FedLC's calibration,
    -tau n^(-1/4) for n images of the class (`fedlc`)."""

    tau: float
    """Factor of what is added, in training and at test."""

    floor: float
    """Smallest share of a class: smaller ones, such as that of a class that a client lacks, count
    as this one. The shares are not divided by their new sum, which would change no softmax."""
