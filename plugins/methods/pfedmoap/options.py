"""The options of pfedmoap.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Tokens of a prompt."""

    words: str
    """Text whose embedding the first tokens start from; the others from N(0, 0.02)."""

    experts: int
    """K, prompts that a client mixes, its own among them."""

    gate_width: int
    """d_gating: entries of a feature that the gating network reads, evenly spaced; all, if there
    are fewer."""

    heads: int
    """Heads of the gating network; they divide the number of entries that it reads."""

    scale: float
    """Factor of an attention score."""

    local: float
    """lambda, weight of the own prompt's logits beside those of the mixture."""
