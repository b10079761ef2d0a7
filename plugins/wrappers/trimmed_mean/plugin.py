"""Trimmed mean: every parameter is averaged without its largest and smallest values.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018),
Definition 2. Clients send n values of a coordinate. The beta n largest and the beta n smallest of
them are left out, and the others are averaged. With beta = 1/2, it is the coordinate-wise median
(Definition 1). Choices:

- An update with NaN or infinity is left out as a whole, and does not count among the n.
- beta n is rounded up, but at least one value stays, or two if n is even.
- Clients have equal weights, whatever the method's weights are. The server gets the trimmed mean as
  every client's parameters. So any mean that it takes of them is this one.
- A method that uploads more than parameters is refused, because its server expects the parameters
  to belong to the client that sent the rest.
"""

import math
from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Update

from .options import Options


def trimmed_mean(values: Tensor, trim: float) -> Tensor:
    """Return the mean [D] over n clients of values [n, D], without the extreme ones.

    The ceil(beta n) largest and smallest values of each coordinate are left out, but at least one
    value stays, or two if n is even. beta is `trim`.
    """
    count = len(values)
    # 1e-9, because beta n is not exact in binary: 0.07 * 100 must be 7
    cut = min(math.ceil(trim * count - 1e-9), (count - 1) // 2)
    return values.sort(0).values[cut : count - cut].mean(0)


@fl.hookimpl(wrapper=True)
def client_update(task: Task, clients: Cohort) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    for update in updates:
        fl.require_params_alone(task, "trimmed_mean", update)
    return updates


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    updates = fl.finite_updates(task, "trimmed_mean", (yield))
    values = torch.stack([fl.flatten(update.payload) for update in updates])  # [n, D]
    options: Options = task.wrappers["trimmed_mean"]
    robust = trimmed_mean(values, options.trim)
    payload = fl.unflatten(robust, updates[0].payload)
    return [replace(update, payload=payload) for update in updates]
