"""Secure masks (Bonawitz et al., CCS 2017, Section 4): the server sees no client's own update.

Every pair of a round's clients u < v draws a mask from a common seed; u adds it to what it sends
and v subtracts it, so that masks cancel in the sum, up to float32's rounding (`preserves = "sum"`).
If an upload is lost, the server subtracts the masks that the client and its partners share from the
partners' uploads, as the protocol does from secret shares. Where the server's mean is weighted by
training images, masks are divided by these weights. The seeds here follow from the run's seed,
where the protocol agrees on keys.
"""

from collections.abc import Generator, Iterable
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options


def pair_mask(task: Task, client: int, other: int, payload: Tree) -> Tree:
    """Return the mask that `client` adds for the pair; `other` adds its negative."""
    options: Options = task.wrappers["masks"]
    low = min(client, other)
    high = max(client, other)
    weight = len(task.data.train[client]) if task.aggregation == "weighted" else 1
    generator = task.generator("masks", low, high)
    scale = (options.scale if client == low else -options.scale) / weight

    def draw(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return torch.zeros_like(value)  # integers are sent unmasked
        return scale * torch.randn(value.shape, generator=generator).to(value)

    return fl.tensor_map(draw, payload)


def add_masks(task: Task, update: Update, others: Iterable[int], sign: int) -> Update:
    """Return the update plus `sign` times the masks of its client's pairs with `others`."""
    payload = update.payload
    for other in others:
        mask = pair_mask(task, update.client, other, update.payload)
        payload = fl.tensor_map(lambda value, m: value + sign * m, payload, mask)
    return replace(update, payload=payload)


@fl.hookimpl(wrapper=True)
def client_update(task: Task, clients: Cohort) -> Generator[None, list[Update], list[Update]]:
    sent = [
        replace(update, client=client) for client, update in zip(clients.ids, (yield), strict=True)
    ]
    return [add_masks(task, u, [k for k in task.selected if k != u.client], +1) for u in sent]


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    lost = sorted(set(task.selected) - {update.client for update in updates})
    return [add_masks(task, update, lost, -1) for update in updates]
