"""The options of fedem.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    weighted: bool
    """Weight clients by their numbers of training images."""

    components: int
    """Number M of models that are mixed."""

    newcomer_steps: int
    """Number of EM steps that estimate a client's mixture weights before a test, without a change
    of the models."""

    train: str
    """Part of the model below the head that is trained: `prompts` for prompts alone, or a regular
    expression, which selects the backbone's weights in whose names it finds a match (empty: all
    weights)."""

    prompts: int
    """Number of prompt tokens at the first block, with `train: prompts`."""

    head: Literal["zero", "drawn"]
    """How heads start: at `zero`, as in all methods, or each `drawn` at random, as in the paper."""
