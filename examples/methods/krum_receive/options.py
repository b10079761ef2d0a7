"""The options of krum_receive.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["krum_receive"]."""

    byzantine: int
    """Number f of clients in a round that are assumed to send arbitrary updates."""

    kept: int
    """Number of updates that are averaged: 1 is Krum, and more than 1 is Multi-Krum."""
