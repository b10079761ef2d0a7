"""The options of top_k.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["top_k"]."""

    share: float
    """Share of the entries of a client's change that is sent; it sets k."""

    memory: bool
    """Whether a client adds what it did not send to its next change (error feedback)."""
