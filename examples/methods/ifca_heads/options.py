"""The options of ifca_heads.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    clusters: int
    """Number of models, one for each cluster of clients."""
