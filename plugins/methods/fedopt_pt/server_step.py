"""The server's optimisers, which take a step against a pseudo-gradient instead of a gradient.

The pseudo-gradient is the server's parameters minus the mean of the clients' parameters: Reddi et
al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2 (FedOpt). The state of an optimiser,
its moments, is a tree in the server's state. The options `server_...` choose the optimiser.
"""

import torch
from torch import Tensor

from fedloom.toolbox import Tree, leaves, tensor_map

from .options import Options


def init_moments(options: Options, params: Tree) -> Tree:
    """Return the optimiser's moments before the first step.

    sgd with momentum has `momentum` m, and plain sgd has no moments. The others have `exp_avg` m
    and `exp_avg_sq` v. All moments start at zero, except v of yogi and adagrad. It starts at eps^2,
    the smallest value that Algorithm 2 allows.
    """
    if options.server_optimizer == "sgd":
        if not options.server_momentum:
            return {}
        return {"momentum": tensor_map(torch.zeros_like, params)}
    first = 0.0 if options.server_optimizer == "adam" else options.server_eps**2
    return {
        "exp_avg": tensor_map(torch.zeros_like, params),
        "exp_avg_sq": tensor_map(lambda value: torch.full_like(value, first), params),
    }


def server_step(
    options: Options, params: Tree, gradient: Tree, moments: Tree, step: int
) -> tuple[Tree, Tree]:
    """Return the parameters x and the moments after one step against the gradient g.

    sgd: m <- momentum m + g, and x <- x - lr m (without momentum: x - lr g).
    yogi and adagrad (Algorithm 2): m <- beta1 m + (1 - beta1) g, and x <- x - lr m / (sqrt(v) +
    eps). For adagrad, v <- v + g^2. For yogi, v <- v - (1 - beta2) g^2 sign(v - g^2).
    adam: the step of torch, with its bias correction, which Algorithm 2 leaves out.

    Args:
        options: lr is `server_lr`, momentum `server_momentum`, beta1 and beta2 `server_betas`, and
            eps `server_eps`, which is tau in Algorithm 2.
        gradient: a tree of the same shapes as `params`; for FedOpt, the pseudo-gradient.
        moments: the moments of `init_moments`, or of the step before.
        step: number of the step, from 1; only adam needs it.
    """
    if options.server_optimizer == "sgd":
        return _step_sgd(options, params, gradient, moments)
    if options.server_optimizer == "adam":
        return _step_adam(options, params, gradient, moments, step)
    return _step_algorithm_2(options, params, gradient, moments)


def _step_sgd(options: Options, params: Tree, gradient: Tree, moments: Tree) -> tuple[Tree, Tree]:
    """Return the parameters and the moments after a step of sgd."""
    lr = options.server_lr
    momentum = options.server_momentum
    if not momentum:
        return tensor_map(lambda x, g: x - lr * g, params, gradient), {}
    mean = tensor_map(lambda m, g: momentum * m + g, moments["momentum"], gradient)
    return tensor_map(lambda x, m: x - lr * m, params, mean), {"momentum": mean}


def _step_algorithm_2(
    options: Options, params: Tree, gradient: Tree, moments: Tree
) -> tuple[Tree, Tree]:
    """Return the parameters and the moments after a step of yogi or adagrad."""
    beta1, beta2 = options.server_betas

    def next_v(v: Tensor, g: Tensor) -> Tensor:
        square = g.square()
        if options.server_optimizer == "adagrad":
            return v + square
        return v - (1 - beta2) * square * (v - square).sign()

    def next_x(x: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return x - options.server_lr * m / (v.sqrt() + options.server_eps)

    mean = tensor_map(lambda m, g: beta1 * m + (1 - beta1) * g, moments["exp_avg"], gradient)
    squares = tensor_map(next_v, moments["exp_avg_sq"], gradient)
    return tensor_map(next_x, params, mean, squares), {"exp_avg": mean, "exp_avg_sq": squares}


def _step_adam(
    options: Options, params: Tree, gradient: Tree, moments: Tree, step: int
) -> tuple[Tree, Tree]:
    """Return the parameters and the moments after step `step` (from 1) of torch's Adam."""
    params = tensor_map(torch.clone, params)
    moments = tensor_map(torch.clone, moments)
    beta1, beta2 = options.server_betas
    optimizer = torch.optim.Adam(
        [value for _, value in leaves(params)],
        options.server_lr,
        (beta1, beta2),
        options.server_eps,
    )

    def load(value: Tensor, g: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Give torch's optimiser the gradient and the moments of one parameter."""
        value.grad = g
        before = torch.tensor(step - 1.0)
        optimizer.state[value] = {"step": before, "exp_avg": mean, "exp_avg_sq": squares}

    tensor_map(load, params, gradient, moments["exp_avg"], moments["exp_avg_sq"])
    optimizer.step()  # changes parameters and moments, which are copies
    return tensor_map(torch.Tensor.detach, params), moments
