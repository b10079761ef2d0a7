"""The options of kgcoop.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of the context."""

    words: str
    """Text whose embedding the first tokens start from; the others from N(0, 0.02)."""

    template: str
    """hand-written prompt that the texts of classes are held near."""

    weight: float
    """lambda, of 1 - cosine, the mean over classes; 0: CoOp's loss."""

    averaged: bool
    """The server averages the context; false: every client trains one alone (KgCoOp, CoOp)."""
