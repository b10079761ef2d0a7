"""The options of kgcoop.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number of tokens of the context."""

    words: str
    """Text from whose embedding the first tokens start, such as 'a photo of a'; the others start
    from N(0, 0.02)."""

    template: str
    """Hand-written prompt that the texts of the classes are held near; the name of the class takes
    the place of {}."""

    weight: float
    """Weight lambda of 1 - cosine between learned and hand-written texts, the mean over classes.
    With 0, the loss is CoOp's."""

    averaged: bool
    """Whether the server averages the context. With false, every client trains one alone (KgCoOp,
    CoOp)."""
