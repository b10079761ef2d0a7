"""The options of pfedmoap.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    length: int
    """Number of tokens of a prompt."""

    words: str
    """Text from whose embedding the first tokens start, such as 'a photo of a'; the others start
    from N(0, 0.02)."""

    experts: int
    """Number K of prompts that a client mixes, its own among them."""

    gate_width: int
    """Number d_gating of entries of a feature that the gating network reads, evenly spaced; all
    entries if there are fewer."""

    heads: int
    """Number of heads of the gating network, which must divide the number of entries that it
    reads."""

    scale: float
    """Factor of an attention score."""

    local: float
    """Weight lambda of the logits of the client's own prompt, beside those of the mixture."""
