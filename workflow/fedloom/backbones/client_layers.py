"""Layers of a backbone with an explicit client axis: each client may have weights of its own."""

from collections.abc import Mapping
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.common.errors import FedLoomError

# name of a parameter -> the values of all clients [K, ...]
Weights = Mapping[str, Tensor]


def check_weights(weights: Weights | None, module: nn.Module) -> None:
    """Check that weights have the names of a module's parameters, and [K, ...] of their shapes.

    Raises:
        FedLoomError: the module has no parameter of a name, or the shape is another.
    """
    for name, value in (weights or {}).items():
        try:
            shape = attrgetter(name)(module).shape
        except AttributeError:
            raise FedLoomError(f"weights: the backbone has no parameter '{name}'") from None
        if value.shape[1:] != shape:
            wanted = ", ".join(["clients", *map(str, shape)])
            raise FedLoomError(f"weights: '{name}' must be [{wanted}], got {list(value.shape)}")


def select_weights(weights: Weights | None, prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names start with `prefix`, by their names without it."""
    return {k[len(prefix) :]: v for k, v in (weights or {}).items() if k.startswith(prefix)}


def apply_layer(module: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Apply a module along the last axis of x [K, ..., d].

    `weights` are the clients' parameters [K, ...] by name within the module. Missing ones are those
    of the module.
    """
    if not weights:
        return module(x)
    if not isinstance(module, nn.Linear | nn.LayerNorm):
        return apply_per_client(module, x, weights)

    weight, bias = (weights.get(name, getattr(module, name)) for name in ("weight", "bias"))
    if isinstance(module, nn.Linear):
        return linear_layer(x, weight, bias)

    # torch's layer norm takes no scale and shift per client, so it only normalises here
    normed = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if weight is not None:
        normed = normed * _broadcast(weight, x)
    if bias is not None:
        normed = normed + _broadcast(bias, x)
    return normed


def apply_per_client(module: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Apply any module to x [K, B, ...]; each client's part uses the client's weights [K, ...]."""
    return torch.vmap(lambda own, x: functional_call(module, own, (x,)))(dict(weights), x)


def linear_layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b [K, ..., o] for x [K, ..., i].

    Args:
        weight: W [o, i], or one per client [K, o, i].
        bias: b [o], or one per client [K, o].
    """
    # all clients have the same weight
    if weight.dim() == 2:
        if bias is None or bias.dim() == 1:
            return F.linear(x, weight, bias)
        return F.linear(x, weight) + _broadcast(bias, x)

    # each client has its own weight
    flat = x.flatten(1, -2)  # [K, N, i]
    transposed = weight.mT  # [K, i, o]
    if bias is None:
        out = torch.bmm(flat, transposed)
    else:
        out = torch.baddbmm(bias.expand(len(x), -1).unsqueeze(1), flat, transposed)
    return out.unflatten(1, x.shape[1:-1])


def _broadcast(value: Tensor, x: Tensor) -> Tensor:
    """Return a vector [o], or one per client [K, o], with axes that broadcast to x [K, ..., o]."""
    if value.dim() == 1:
        return value
    return value.view(len(value), *[1] * (x.dim() - 2), -1)
