"""The options of gmm_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """Gaussian mixture that the server fits: with diagonal covariances (`paper`), or Bayesian with
    full covariances (`released`, PFPT's code)."""

    weighted: bool
    """Weight clients by their numbers of training images in the mean of the heads."""

    prompts: int
    """Number of prompt tokens at the first block; with `selection`, number of prompts that a client
    picks from the pool."""

    selection: bool
    """If true, each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Number of prompts in the pool, with `selection`."""

    history: int
    """Number n: the centroids of every n-th round are kept for figures. It doubles whenever more
    than 16 sets are kept."""
