"""The options of audit.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["audit"]."""

    withheld: float
    """Share of a client's training images that nobody trains on: the non-members."""

    public: int
    """Number of public images whose frozen features the server knows, by which it reads class
    shares out of the change of a head."""
