"""The options of forged_update.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["forged_update"]."""

    share: float
    """Share of the participating clients that attack, drawn by the seed."""

    scale: float
    """Factor gamma of an attacker's change: -1 flips its sign, a factor above 1 outweighs other
    clients, and 0 makes the attacker a free rider. With 1 and no noise, nobody attacks (a baseline
    of the same honest clients)."""

    noise: float
    """Standard deviation sigma of the Gaussian noise on every number that an attacker sends."""
