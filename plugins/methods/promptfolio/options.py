"""The options of promptfolio.

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

    theta: float
    """Share of the personal context's texts in the mixture."""
