"""The options of fedavg_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    prompts: int
    """Number of prompt tokens at the first block; with `selection`, number of prompts that a client
    picks from the pool."""

    selection: bool
    """If true, each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Number of prompts in the pool, with `selection`."""
