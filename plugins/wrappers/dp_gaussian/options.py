"""The options of dp_gaussian.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["dp_gaussian"]."""

    clip: float
    """Largest norm S of a client's change of the parameters; a change with a larger norm is scaled
    down to it."""

    noise: float
    """Standard deviation z of the noise on the sum of the changes, in multiples of `clip`."""

    delta: float
    """The delta for which epsilon is reported."""

    sampling: Literal["poisson", "study"]
    """`poisson`: each client takes part independently with probability q = clients_per_round /
    participating clients. `study`: clients are selected as without the wrapper, and epsilon is
    computed as if all clients took part in every round."""

    randomness: Literal["seeded", "secret"]
    """`seeded`: noise and clients follow from the seed, so that the run can be repeated, and anyone
    who knows the seed can subtract the noise. `secret`: they follow from the operating system's
    entropy, and every run differs."""
