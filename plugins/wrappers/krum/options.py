"""The options of krum.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["krum"]."""

    byzantine: int
    """Number f of a round's clients that may send anything. A round needs 2 f + 3 updates."""

    kept: int
    """Number m of updates that are averaged: 1 is Krum, more is Multi-Krum."""
