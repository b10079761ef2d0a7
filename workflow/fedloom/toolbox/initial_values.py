"""Draw the values of trained layers before training."""

import torch
from torch import Tensor


def init_linear(
    inputs: int, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw a weight or a bias of this shape as torch.nn.Linear does, for a layer of `inputs`.

    The values are from U(-1, 1) / sqrt(inputs), where `inputs` is the layer's number of inputs.
    """
    uniform = 2 * torch.rand(shape, generator=generator) - 1
    return (uniform / inputs**0.5).to(device)


def init_uniform(
    bound: float, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw values of this shape from U(-bound, bound).

    With bound = 1 / sqrt(inputs), they equal those of `init_linear` up to rounding: this function
    multiplies where that one divides.
    """
    uniform = 2 * torch.rand(shape, generator=generator) - 1
    return (bound * uniform).to(device)
