"""The options of dp_laplace.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["dp_laplace"]."""

    eps: float
    """Privacy budget epsilon of every update of the prototypes (Table 7)."""

    randomness: Literal["seeded", "secret"]
    """`seeded`: the noise follows from the seed, so that the run can be repeated, and anyone who
    knows the seed can subtract the noise. `secret`: it follows from the operating system's entropy,
    and every run differs."""
