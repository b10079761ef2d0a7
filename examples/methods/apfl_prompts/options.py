"""The options of apfl_prompts.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Number of prompt tokens at the first block."""

    alpha: float
    """Share of the personal model in the mixture."""
