"""The options of fedem_heads.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    components: int
    """Number of models that are mixed."""
