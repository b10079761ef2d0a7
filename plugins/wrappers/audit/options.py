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
    """Number of public images whose frozen features the server knows. By them, it infers a client's
    shares of classes from the change of the client's head."""
