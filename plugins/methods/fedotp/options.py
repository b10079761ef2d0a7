"""The options of fedotp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of each context."""

    words: str
    """Text whose embedding the first tokens start from, as 'a photo of a'; the others from N(0,
    0.02)."""

    mass: float
    """Share of an image's patches that is moved onto the prompts (the authors' TOP_PERCENT)."""

    eps: float
    """Weight of the entropy in the transport."""

    balanced: bool
    """Every patch gives exactly what it has (the authors' OT: Sinkhorn; needs mass 1), instead of
    at most that (COT)."""
