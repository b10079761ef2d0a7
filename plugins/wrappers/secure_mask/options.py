"""The options of secure_mask.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.wrappers["secure_mask"]."""

    fraction_bits: int
    """Number of bits behind the binary point. A number has 32 bits, including its sign."""
