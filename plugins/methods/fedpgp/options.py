"""The options of fedpgp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of the context."""

    rank: int
    """Rank of the personal part."""

    mu: float
    """Weight of the contrast."""

    temperature: float
    """Temperature of the contrast."""
