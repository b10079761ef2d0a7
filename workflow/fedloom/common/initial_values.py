"""Draw the values from which trained layers and prompts start."""

import torch
from torch import Tensor


def init_linear(
    inputs: int, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw a weight or a bias of this shape as torch.nn.Linear does, for a layer of `inputs`.

    The values are from U(-1, 1) / sqrt(inputs), where `inputs` is the layer's number of inputs.
    """
    return (_uniform(shape, generator) / inputs**0.5).to(device)


def init_uniform(
    bound: float, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw values of this shape from U(-bound, bound).

    With bound = 1 / sqrt(inputs), they equal those of `init_linear` up to rounding: this function
    multiplies where that one divides.
    """
    return (bound * _uniform(shape, generator)).to(device)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw values of this shape from U(-1, 1), on the CPU."""
    return 2 * torch.rand(shape, generator=generator) - 1
