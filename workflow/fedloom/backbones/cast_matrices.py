"""Cast the matrices of frozen blocks once, to the number format that autocast computes in."""

from copy import deepcopy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# frozen block -> number format -> the block with its matrices in this format
_CAST_BLOCKS: WeakKeyDictionary[nn.Module, dict[torch.dtype, nn.Module]] = WeakKeyDictionary()


def with_cast_matrices(block: nn.Module, tokens: Tensor) -> nn.Module:
    """Return a frozen block whose matrices have the number format of autocast, if that is on.

    Autocast would cast the frozen matrices and their biases in every call. The numbers are the
    same; norms stay in float32.
    """
    device = tokens.device.type
    if not torch.is_autocast_enabled(device):
        return block

    number_format = torch.get_autocast_dtype(device)
    cast_blocks = _CAST_BLOCKS.setdefault(block, {})
    if number_format not in cast_blocks:
        cast = deepcopy(block).requires_grad_(False)
        for module in cast.modules():
            if isinstance(module, nn.Linear | nn.MultiheadAttention):
                module.to(number_format)
        cast_blocks[number_format] = cast
    return cast_blocks[number_format]
