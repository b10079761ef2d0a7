"""The options of centralised.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    train: str
    """Trained beside the head: 'prompts', nothing ('head'), or weights of the backbone in whose
    names this regular expression is found ('': all)."""

    prompts: int
    """Prompt tokens at the first block; with train: prompts."""

    history: int
    """Prompts are kept for the figure every this many rounds; with train: prompts."""
