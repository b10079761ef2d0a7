"""Draw the values that trained layers and prompts start from."""

import torch
from torch import Tensor


def init_linear(
    inputs: int, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw a weight or a bias of this shape as torch.nn.Linear draws them, for a layer of `inputs`.

    The values are from U(-1, 1) / sqrt(inputs).
    """
    return (_uniform(shape, generator) / inputs**0.5).to(device)


def init_uniform(
    bound: float, *shape: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw values of this shape from U(-bound, bound).

    With the bound 1 / sqrt(inputs) they are those of `init_linear` up to rounding, since that
    divides where this multiplies.
    """
    return (bound * _uniform(shape, generator)).to(device)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw values of this shape from U(-1, 1), on the CPU."""
    return 2 * torch.rand(shape, generator=generator) - 1
