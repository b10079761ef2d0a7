"""The options of fedavg_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weigh clients by their training images."""

    prompts: int
    """Prompt tokens at the first block; with selection, those that a client picks."""

    selection: bool
    """Each client picks its prompts from a pool (the + variants of PFPT's Tables 6-7)."""

    pool: int
    """Prompts in the pool; with selection only."""
