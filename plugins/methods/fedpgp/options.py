"""The options of fedpgp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number of tokens of the context."""

    rank: int
    """Rank of the personal part of the context."""

    mu: float
    """Weight of the contrastive loss."""

    temperature: float
    """Temperature of the contrastive loss."""
