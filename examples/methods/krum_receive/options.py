"""The options of krum_receive.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["krum_receive"]."""

    byzantine: int
    """Number f of clients that may send anything."""

    kept: int
    """Number of updates that are averaged: 1 is Krum, more is Multi-Krum."""
