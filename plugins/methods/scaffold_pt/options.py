"""The options of scaffold_pt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    server_lr: float
    """Size eta_g of the server's step towards the clients' mean."""

    prompts: int
    """Number of prompt tokens at the first block."""
