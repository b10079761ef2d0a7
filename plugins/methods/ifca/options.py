"""The options of ifca.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    clusters: int
    """k, number of models."""

    share_prompts: bool
    """All clusters have the same prompts, averaged over all clients (weight sharing)."""

    prompts: int
    """Prompt tokens at the first block."""

    head: Literal["zero", "drawn"]
    """Heads start at zero, as in all methods, or drawn apart, as in the paper."""
