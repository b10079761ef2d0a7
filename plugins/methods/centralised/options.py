"""The options of centralised.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    train: str
    """The part that is trained beside the head: `prompts`; nothing (`head`); or the backbone's
    weights in whose names this regular expression is found (empty: all of them)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""

    history: int
    """Number of rounds between the prompts that are kept for the figure, with `train: prompts`."""
