"""Count what training keeps of a frozen block for the backward pass."""

from typing import Any

from timm.layers.mlp import GluMlp, SwiGLU
from torch import nn

from fedloom.backbones import eva_blocks
from fedloom.backbones.block_pass import part_names
from fedloom.machine.memory import SAVED_FLOATS

# numbers per token and feature, in float32: all but those of the MLP, of a plain block; those of
# rotary positions, which keep the turned queries and keys; and of a norm behind the attention
ATTENTION = 7
ROTARY = 2
INNER_NORM = 1
# a gated MLP keeps gates, values and their product
GATED = 3


def saved_floats(block: Any, width: int, has_rotary: bool) -> float:
    """Return how many numbers of float32 a block keeps, per token and feature.

    A plain MLP keeps its h activations, mostly 4 d. The result is at least that of such a block,
    also where the parts of a block are unknown.

    Args:
        block: the block.
        width: d, the length of a token.
        has_rotary: True if the block has rotary positions.
    """
    names = part_names(block)
    if eva_blocks.is_readable(block):
        names = eva_blocks.EVA_PARTS
    if "fc2" not in names:
        return SAVED_FLOATS
    last = block.get_submodule(names["fc2"])
    if not isinstance(last, nn.Linear):
        return SAVED_FLOATS

    mlp = getattr(block, "mlp", None)
    activations = last.in_features / width
    if isinstance(mlp, GluMlp | SwiGLU):
        activations *= GATED
    numbers = ATTENTION + activations
    if has_rotary:
        numbers += ROTARY
    norm = getattr(getattr(block, "attn", None), "norm", None)
    if norm is not None and not isinstance(norm, nn.Identity):
        numbers += INNER_NORM
    return max(SAVED_FLOATS, numbers)
