"""Optimisers of the server: a step against a pseudo-gradient, as of a mean of clients' changes.

Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2 (FedOpt). The state of an
optimiser, its moments, is a tree in the server's state.
"""

import torch
from torch import Tensor

from fedloom.toolbox import Tree, leaves, tensor_map

KINDS = ("adam", "yogi", "adagrad", "sgd")


def init_moments(kind: str, params: Tree, momentum: float = 0.0, eps: float = 1e-3) -> Tree:
    """Return an optimiser's moments before the first step.

    sgd with momentum has `momentum` m, and plain sgd has no moments. The others have `exp_avg` m
    and `exp_avg_sq` v. All moments start at zero, except v of yogi and adagrad. It starts at eps^2,
    the smallest value that Algorithm 2 allows.
    """
    if kind == "sgd":
        return {"momentum": tensor_map(torch.zeros_like, params)} if momentum else {}
    first = 0.0 if kind == "adam" else eps**2
    return {
        "exp_avg": tensor_map(torch.zeros_like, params),
        "exp_avg_sq": tensor_map(lambda value: torch.full_like(value, first), params),
    }


def server_step(
    kind: str,
    params: Tree,
    gradient: Tree,
    moments: Tree,
    *,
    lr: float,
    number: int = 1,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-3,
) -> tuple[Tree, Tree]:
    """Return the parameters x and the moments after one step against the gradient g.

    sgd: m <- momentum m + g, and x <- x - lr m (without momentum: x - lr g).
    yogi and adagrad (Algorithm 2): m <- beta1 m + (1 - beta1) g, and x <- x - lr m / (sqrt(v) +
    eps). For adagrad, v <- v + g^2. For yogi, v <- v - (1 - beta2) g^2 sign(v - g^2).
    adam: the step of torch, with its bias correction, which Algorithm 2 leaves out.

    Args:
        kind: one of KINDS.
        gradient: a tree of the same shapes as `params`; for FedOpt, the parameters minus the
            clients' mean.
        moments: the moments of `init_moments`, or of the step before.
        number: number of the step, from 1; only adam needs it.
        momentum: only sgd uses it.
        betas: beta1 and beta2; sgd uses neither, adagrad only beta1.
        eps: tau in Algorithm 2; sgd does not use it.
    """
    if kind == "sgd":
        if momentum:
            moved = tensor_map(lambda m, g: momentum * m + g, moments["momentum"], gradient)
            return tensor_map(lambda x, m: x - lr * m, params, moved), {"momentum": moved}
        return tensor_map(lambda x, g: x - lr * g, params, gradient), {}
    if kind == "adam":
        return _adam(params, gradient, moments, lr, number, betas, eps)

    def second(v: Tensor, g: Tensor) -> Tensor:
        """Return the next v."""
        square = g.square()
        if kind == "adagrad":
            return v + square
        return v - (1 - betas[1]) * square * (v - square).sign()

    mean = tensor_map(lambda m, g: betas[0] * m + (1 - betas[0]) * g, moments["exp_avg"], gradient)
    squares = tensor_map(second, moments["exp_avg_sq"], gradient)
    stepped = tensor_map(lambda x, m, v: x - lr * m / (v.sqrt() + eps), params, mean, squares)
    return stepped, {"exp_avg": mean, "exp_avg_sq": squares}


def _adam(
    params: Tree,
    gradient: Tree,
    moments: Tree,
    lr: float,
    number: int,
    betas: tuple[float, float],
    eps: float,
) -> tuple[Tree, Tree]:
    """Return the parameters and the moments after step `number` (from 1) of torch's Adam."""
    params, moments = (tensor_map(torch.clone, tree) for tree in (params, moments))
    optimizer = torch.optim.Adam([value for _, value in leaves(params)], lr, betas, eps)

    def load(value: Tensor, g: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Give torch's optimiser the gradient and the moments of one parameter."""
        value.grad = g
        step = torch.tensor(number - 1.0)
        optimizer.state[value] = {"step": step, "exp_avg": mean, "exp_avg_sq": squares}

    tensor_map(load, params, gradient, moments["exp_avg"], moments["exp_avg_sq"])
    optimizer.step()  # changes parameters and moments, which are copies
    return tensor_map(torch.Tensor.detach, params), moments
