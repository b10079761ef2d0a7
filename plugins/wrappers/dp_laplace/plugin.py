"""Laplace noise on class prototypes: PEP-FedPT's class-level differential privacy (A.4.1).

After aggregation, the server adds Laplace(0, S_c / eps) to the prototype of every class that was
updated, at every chosen block. It also does so for the warm start. Here S_c = 2 max_i ||cls_i -
mu_c||_1 / N_c. Choices where the paper leaves one open:

- mu_c, from which deviations are taken, is the mean that the client itself uploads.
- N_c is the number of examples of the class over the clients that upload, in all rounds since the
  last update.
- If no client holds two images of a class, the deviation is zero, and so is the noise. With N_c =
  1, the formula does not protect a class at all. With this reading of mu_c, it does not protect
  several images on as many clients either.
- `randomness: seeded` draws the noise from the seed. `secret` draws it from a key that the
  operating system gave the job. Noise is added in float64.

It wraps any method whose server state has prototypes [S, C, d] in `constants`. The side channel
must have `prototypes` with `spread` (max_i, [S, C]) and `count` ([C]). Other methods are refused.
"""

from collections.abc import Generator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Task, Tree, Update

from .options import Options


def sensitivity(spread: Tensor, count: Tensor) -> Tensor:
    """Compute S_c = 2 max_i ||cls_i - mu_c||_1 / N_c [S, C], for S blocks.

    Args:
        spread: the largest deviations max_i ||cls_i - mu_c||_1 [S, C].
        count: N_c, the number of examples of each class [C].
    """
    return 2 * spread / count.clamp(min=1)


def to_laplace(scale: Tensor, uniform: Tensor) -> Tensor:
    """Turn uniform draws from (0, 1) into draws from Laplace(0, scale), by its inverse CDF."""
    u = uniform - 0.5
    return (-torch.sign(u) * torch.log1p(-2 * u.abs())).to(scale) * scale


def uniform(task: Task, shape: torch.Size) -> Tensor:
    """Draw this round's uniform numbers from (0, 1), float64, of this shape."""
    options: Options = task.wrappers["dp_laplace"]
    if options.randomness == "secret":
        return fl.secret_uniform(task, "dp_laplace", shape)
    return torch.rand(shape, generator=task.generator("dp_laplace"), dtype=torch.float64)


def add_noise(task: Task, prototypes: Tensor, statistics: Tree) -> Tensor:
    """Return the prototypes [S, C, d] plus noise from Laplace(0, S_c / eps).

    Args:
        statistics: `spread` [S, C] and `count` [C], from which S_c follows (see `sensitivity`).
    """
    options: Options = task.wrappers["dp_laplace"]
    eps = options.eps
    scale = sensitivity(statistics["spread"].double(), statistics["count"]) / eps  # [S, C]
    noise = to_laplace(scale[..., None], uniform(task, prototypes.shape))
    return (prototypes + noise).to(prototypes.dtype)


def with_noise(task: Task, server: Tree, prototypes: Tensor, window: Tree) -> Tree:
    """Return the server's state with other prototypes and another window.

    The metric `secret_noise` is 1 if the noise is drawn from a secret key.
    """
    options: Options = task.wrappers["dp_laplace"]
    secret = float(options.randomness == "secret")
    return {
        **server,
        "constants": {**server["constants"], "prototypes": prototypes},
        "metrics": {**server.get("metrics", {}), "secret_noise": secret},
        "dp_laplace": window,
    }


def empty_window(prototypes: Tensor) -> Tree:
    """Return a window without examples: `spread` [S, C] and `count` [C] since the update, zero."""
    spread = torch.zeros_like(prototypes[..., 0])
    return {"spread": spread, "count": torch.zeros_like(spread[0], dtype=torch.int64)}


@fl.hookimpl(wrapper=True)
def init_server(task: Task) -> Generator[None, Tree, Tree]:
    server = yield
    constants = server.get("constants", {})
    if "prototypes" not in constants or "prototypes" not in server.get("side_channel", {}):
        raise fl.FedLoomError(
            f"dp_laplace: method {task.method} uploads no prototypes to protect; remove the wrapper"
        )
    noisy = add_noise(task, constants["prototypes"], server["side_channel"]["prototypes"])
    return with_noise(task, server, noisy, empty_window(noisy))


@fl.hookimpl(wrapper=True)
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Generator[None, Tree, Tree]:
    result = yield
    prototypes = result["constants"]["prototypes"]
    before = server["constants"]["prototypes"]
    statistics = [server["dp_laplace"], *(u.side_channel["prototypes"] for u in updates)]
    window = {
        "spread": torch.stack([s["spread"] for s in statistics]).amax(0),
        "count": torch.stack([s["count"] for s in statistics]).sum(0),
    }

    # noise on the prototypes that changed; a new window starts when any of them has changed
    updated = (prototypes != before).any(-1, keepdim=True)  # [S, C, 1]
    if updated.any():  # a method may update them every few rounds only
        prototypes = torch.where(updated, add_noise(task, prototypes, window), prototypes)
        window = empty_window(prototypes)
    return with_noise(task, result, prototypes, window)
