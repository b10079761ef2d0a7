"""The options of gmm_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """Gaussian mixture of the server: with diagonal covariances (`paper`), or Bayesian with full
    covariances (`released`, PFPT's code)."""

    weighted: bool
    """Weight clients by their numbers of training images in the mean of the heads."""

    prompts: int
    """Number of prompt tokens at the first block; with `selection`, of those that a client
    picks."""

    selection: bool
    """If true, each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Number of prompts in the pool, with `selection`."""

    history: int
    """Number of rounds between the prompts that are kept for figures. It doubles whenever more than
    16 sets are kept."""
