"""The options of gmm_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """Diagonal Gaussian mixture, or Bayesian with full covariances (PFPT's released code)."""

    weighted: bool
    """Weigh clients by their training images, in the mean of heads."""

    prompts: int
    """Prompt tokens at the first block; with selection, those that a client picks."""

    selection: bool
    """Each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Prompts in the pool; with selection only."""

    history: int
    """Keep the prompts of every n-th round, for figures; n doubles beyond 16 of them."""
