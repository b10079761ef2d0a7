"""The options of promptfl.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of the context."""

    words: str
    """Text whose embedding the first tokens start from, as 'a photo of a'; the others from N(0,
    0.02)."""

    mu: float
    """Weight of the proximal term (FedProx); 0: none."""
