"""The options of cocoop.

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
