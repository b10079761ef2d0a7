"""The options of centralised.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    train: str
    """Part of the model that is trained together with the head: `prompts`; nothing else (`head`);
    or the backbone's weights in whose names this regular expression finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""

    history: int
    """Number n: the prompts of every n-th round are kept for the figure, with `train: prompts`. It
    doubles whenever more than 16 sets are kept."""
