"""Draw the values that trained layers start from."""

import torch
from torch import Tensor


def init_linear(
    inputs: int, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw a weight or a bias of this shape as torch.nn.Linear draws them, for a layer of `inputs`.

    The values are from U(-1, 1) / sqrt(inputs).
    """
    uniform = 2 * torch.rand(shape, generator=generator) - 1
    return (uniform / inputs**0.5).to(device)


def init_uniform(
    bound: float, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw values of this shape from U(-bound, bound).

    With the bound 1 / sqrt(inputs) they are those of `init_linear` up to rounding, since that
    divides where this multiplies.
    """
    uniform = 2 * torch.rand(shape, generator=generator) - 1
    return (bound * uniform).to(device)
