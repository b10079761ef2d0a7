"""The options of krum.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["krum"]."""

    byzantine: int
    """Number f of clients in a round that are assumed to send arbitrary updates. A round needs at
    least 2 f + 3 updates."""

    kept: int
    """Number m of updates that are averaged: 1 is Krum, and more than 1 is Multi-Krum."""
