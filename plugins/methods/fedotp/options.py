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
    """Share of the mass of an image's patches that the transport moves onto the prompts
    (TOP_PERCENT in the authors' code)."""

    eps: float
    """Weight of the entropy in the optimal transport."""

    balanced: bool
    """Whether the transport moves the whole mass of every patch (OT in the authors' code, by
    Sinkhorn's algorithm; needs `mass: 1`). With false, it may move less of a patch (COT in the
    authors' code)."""
