"""The options of backdoor.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["backdoor"]."""

    share: float
    """Share of the participating clients that attack, drawn by the seed."""

    target: int
    """Number of the class that attackers teach the model to predict for images with the trigger."""

    poisoned: float
    """Share of an attacker's training images of other classes that get the trigger and the target
    label. With 0, nobody attacks (a baseline of the same honest clients)."""

    size: float
    """Side of the trigger, as a share of the image's height."""
