"""Krum (Blanchard et al., NIPS 2017, Section 4): aggregate the update that has the nearest others.

With n updates of which f may be anything, the score of an update is the sum of its squared
distances to the n - f - 2 nearest others. The `kept` updates of the lowest scores go on (1: Krum;
more: Multi-Krum), and the method averages them.
"""

from collections.abc import Generator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Task, Update

from .options import Options


def scores(vectors: Tensor, byzantine: int) -> Tensor:
    """Return the sum [n] of each update's squared distances to its n - f - 2 nearest others."""
    count = len(vectors)
    rows = [(vectors - vector).square().sum(1) for vector in vectors]  # one row at a time
    distances = torch.stack(rows)  # [n, n]
    others = distances.sort(1).values[:, 1:]  # without the update itself
    return others[:, : count - byzantine - 2].sum(1)


def payload_vector(update: Update) -> Tensor:
    """Return all floating-point numbers of an update's payload as one vector [D]."""
    numbers = [v for _, v in fl.leaves(update.payload) if isinstance(v, Tensor)]
    return torch.cat([v.flatten().double() for v in numbers if v.is_floating_point()])


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    options: Options = task.wrappers["krum_receive"]
    if len(updates) <= options.kept:
        return updates
    if len(updates) < 2 * options.byzantine + 3:
        raise fl.FedLoomError(
            f"krum_receive: {len(updates)} updates are too few for byzantine: "
            f"{options.byzantine}; raise study.clients_per_round"
        )
    score = scores(
        torch.stack([payload_vector(update) for update in updates]), options.byzantine
    ).tolist()
    order = sorted(range(len(updates)), key=lambda i: (score[i], updates[i].client))
    return [updates[i] for i in order[: options.kept]]
