"""The options of fedotp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number of tokens of each context."""

    words: str
    """Text from whose embedding the first tokens start, such as 'a photo of a'; the others start
    from N(0, 0.02)."""

    mass: float
    """Share of an image's patches that the transport moves onto the prompts (the authors'
    TOP_PERCENT)."""

    eps: float
    """Weight of the entropy in the optimal transport."""

    balanced: bool
    """Whether every patch gives exactly what it has (the authors' OT: Sinkhorn; needs mass 1). With
    false, it gives at most that (COT)."""
