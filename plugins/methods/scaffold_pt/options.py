"""The options of scaffold_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    server_lr: float
    """Step towards the clients' mean, eta_g."""

    prompts: int
    """Prompt tokens at the first block."""
