"""The options of ditto.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    lam: float
    """lambda, how strongly a personal model is held to the shared one; 0: local training."""

    weighted: bool
    """Weigh clients by their training images; Algorithm 1 does not."""

    prompts: int
    """Prompt tokens at the first block."""
