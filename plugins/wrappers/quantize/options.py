"""The options of quantize.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["quantize"]."""

    bits: int
    """Number of bits of an entry, its sign included: there are s = 2^(bits - 1) - 1 levels."""

    bucket: int
    """Number of entries of a tensor that share a norm."""
