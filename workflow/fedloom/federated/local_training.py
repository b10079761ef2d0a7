"""Local training of a whole cohort as one batch with an explicit client axis.

Every client gets exactly its own gradient: the sum of the clients' losses is differentiated, and no
parameter is shared. Gradients are clipped by the norm of each client, optimisers are elementwise,
ragged batches are masked, and a client that has done its steps is left out of later ones.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from fedloom.common.trees import Tree, leaves, tensor_map
from fedloom.data.federation import Batch, read_ahead, shuffled_batches, to_device
from fedloom.federated import check_results
from fedloom.federated.augmentation import training_batch
from fedloom.federated.task import Cohort, Task

# loss(task, params, received, clients, batch) -> losses [K, B], or (losses, extras) with
# extras {counter's name: [K, B, ...], "reported_loss": [K, B]}
Loss = Callable[[Task, Tree, Tree, Cohort, Batch], Tensor | tuple[Tensor, Tree]]


@dataclass
class Trained:
    """The result of local training.

    Attributes:
        params: all parameters [K, ...], those that were trained and those that were not.
        loss: mean reported loss of each client over its steps [K].
        steps: number of optimiser steps of each client [K].
        counters: the counters [K, ...] after training.
    """

    params: Tree
    loss: list[float]
    steps: list[int]
    counters: Tree


def make_optimizer(
    training: SimpleNamespace, params: list[Tensor], lr: float
) -> torch.optim.Optimizer:
    """Build the optimiser that the training options name; all of them work elementwise."""
    decay = training.weight_decay
    if training.optimizer == "sgd":
        return torch.optim.SGD(params, lr, momentum=training.momentum, weight_decay=decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    return kind(params, lr, betas=tuple(training.betas), eps=training.eps, weight_decay=decay)


def learning_rate(task: Task) -> float:
    """Return the learning rate of round `task.round` (from 1), by its schedule."""
    t, past = task.training, task.round - 1
    if t.schedule == "constant":
        return t.lr
    if t.schedule == "exponential":
        return t.lr * t.decay**past
    return t.lr * (1 + math.cos(math.pi * past / t.rounds)) / 2  # cosine


def clip_gradients(params: list[Tensor], limit: float) -> None:
    """Scale each client's gradient of parameters [K, ...] down to an L2 norm of `limit`."""
    gradients = [p.grad for p in params if p.grad is not None]
    if not gradients:
        return
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()  # [K]
    scale = (limit / (norm + 1e-6)).clamp(max=1)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


def _steps(
    task: Task, clients: Cohort, epochs: int | None, purpose: int, fewest: int
) -> Iterator[tuple[tuple[int, ...], list[np.ndarray]]]:
    """Yield for every step the positions of the clients still training, and their rows."""
    t = task.training
    count = t.local_steps if epochs is None else None
    passes = (count or t.epochs) if epochs is None else epochs  # an epoch has a step or more
    streams = []
    for client, work in zip(clients.ids, clients.work, strict=True):
        ids = task.round, client, purpose
        images, drop = task.data.train[client], t.drop_last
        stream = shuffled_batches(images, t.batch_size, passes, task.seed, *ids, drop_last=drop)
        steps = list(islice((rows for rows in stream if len(rows) >= fewest), count))
        streams.append(steps[: math.ceil(work * len(steps))])
    for rows in zip_longest(*streams):
        active = tuple(k for k, row in enumerate(rows) if row is not None)
        yield active, [rows[k] for k in active]


def _take(
    clients: Cohort, received: Tree, active: tuple[int, ...]
) -> tuple[Tensor, Tensor, Cohort, Tree]:
    """Return active and other positions (int64), and of the active clients what they received."""
    device = clients.priors.device
    others = [k for k in range(len(clients)) if k not in active]
    positions, finished = (to_device(np.array(k, np.int64), device) for k in (active, others))
    if others:
        clients, received = clients.subset(active), tensor_map(lambda v: v[positions], received)
    return positions, finished, clients, received


def train_locally(
    task: Task,
    loss: Loss,
    received: Tree,
    clients: Cohort,
    *,
    params: Tree | None = None,
    train: tuple[str, ...] | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    phase: int = 0,
    fewest: int = 1,
    counters: Tree | None = None,
    project: dict[str, Tensor] | None = None,
    clip_apart: tuple[str, ...] = (),
) -> Trained:
    """Train every client of the cohort on its own images.

    Optimiser, batch size and clipping are those of `task.training`. Every call starts with a fresh
    optimiser.

    Args:
        loss: function of (task, params, received, clients, batch) that returns the loss [K, B] of
            every example, and may return a dict beside it: what each example adds to the counters,
            {name: [K, B, ...]}, and `reported_loss` [K, B], to be logged in place of the loss.
        received: what the clients received from the server [K, ...].
        params: the parameters to start from [K, ...]; default: `received["params"]`.
        train: top-level names of `params` that are trained; default: all.
        epochs: default: `task.training.local_steps` steps, or if null, `task.training.epochs`.
        lr: default: `learning_rate(task)`.
        phase: number of the training phase within the round; each draws its own order of batches.
        fewest: a batch of fewer images makes no step, for losses that compare images.
        counters: where counting starts {name: [K, ...]}; the loss reads the current counts in
            `params["counters"]`.
        project: matrices [d, d] by the name of a parameter [K, P, d]: the optimiser's whole step of
            that parameter is multiplied by its matrix.
        clip_apart: top-level names of `params` that are separate models: the gradient of each is
            clipped by its own norm, and those of all other names by theirs together.
    """
    start, project = received["params"] if params is None else params, project or {}
    names = tuple(start) if train is None else train
    trained = tensor_map(
        lambda value: value.detach().clone().requires_grad_(), {name: start[name] for name in names}
    )
    current, flat = {**start, **trained}, [value for _, value in leaves(trained)]
    together = [name for name in trained if name not in clip_apart]
    models = [  # whose gradients are clipped each by its norm
        [value for _, value in leaves({name: trained[name] for name in part})]
        for part in (together, *([name] for name in clip_apart))
    ]
    optimizer = make_optimizer(task.training, flat, learning_rate(task) if lr is None else lr)
    total = torch.zeros(len(clients), device=flat[0].device)
    steps, seen = np.zeros((2, len(clients)), int)
    counted = tensor_map(torch.clone, counters or {})
    # Build and start transferring every step's inputs first, so that no step waits for the host.
    steps_ahead = list(_steps(task, clients, epochs, phase, fewest))
    taken = {ids: _take(clients, received, ids) for ids in {ids for ids, _ in steps_ahead}}
    plain = zip(steps_ahead, task.data.batches([rows for _, rows in steps_ahead]), strict=True)
    batches = read_ahead(
        training_batch(task, taken[active][2].ids, batch, phase, step)
        for step, ((active, _), batch) in enumerate(plain)
    )
    for (active, _), batch in zip(steps_ahead, batches, strict=True):
        positions, finished, members, sent = taken[active]
        everyone = len(active) == len(clients)
        batch.seen = tuple(seen[[*active]].tolist())
        images, additions = batch.mask.sum(1), []
        optimizer.zero_grad(set_to_none=True)
        for micro_batch in batch.parts(task.training.micro_batch):
            inputs = current if counters is None else {**current, "counters": counted}
            if not everyone:
                inputs = tensor_map(lambda v: v[positions], inputs)  # noqa: B023
            result = loss(task, inputs, sent, members, micro_batch)
            mask = micro_batch.mask
            values, extras = check_results.check_loss(task, members.ids, mask, result, counted)
            (values.where(mask, 0).sum(1) / images).sum().backward()
            reported = extras.pop("reported_loss", values).detach()
            total[positions] += reported.where(mask, 0).sum(1) / images
            for name, add in extras.items():  # [K, B, ...], of real images
                real = mask.view(*mask.shape, *[1] * (add.dim() - 2))
                additions.append((name, add.detach().where(real, 0).sum(1)))
        if task.training.clip is not None:
            for model in models:
                clip_gradients(model, task.training.clip)
        with torch.no_grad():
            kept = {} if everyone and not project else tensor_map(torch.clone, trained)
            optimizer.step()
            for name, matrix in project.items():
                trained[name].copy_(kept[name] + (trained[name] - kept[name]) @ matrix)
            if not everyone:  # momentum would carry those that have finished on
                for p, (_, before) in zip(flat, leaves(kept), strict=True):
                    p[finished] = before[finished]
        for name, add in additions:
            counted[name][positions] += add
        steps[[*active]] += 1
        seen[[*active]] += batch.counts
    loss_of_clients = (total.cpu().numpy() / steps.clip(1)).tolist()
    params = tensor_map(torch.Tensor.detach, current)
    return Trained(params, loss_of_clients, steps.tolist(), counted)
