"""The options of topk.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["topk"]."""

    share: float
    """Share of each tensor's entries that is sent."""
