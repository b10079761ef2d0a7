"""The options of ifca.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    clusters: int
    """Number k of models, one for each cluster of clients."""

    share_prompts: bool
    """Whether all clusters have the same prompts, averaged over all clients (weight sharing)."""

    prompts: int
    """Number of prompt tokens at the first block."""

    head: Literal["zero", "drawn"]
    """How heads start: at `zero`, as in all methods, or each `drawn` at random, as in the paper."""
