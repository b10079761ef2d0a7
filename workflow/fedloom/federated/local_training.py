"""Local training of a whole cohort as one batch, with an explicit client axis K.

The result of each client is that of training it alone, up to rounding:

1. Every client gets exactly its own gradient. Clients share no parameter, so the gradient of the
   sum of their losses has a separate part for each client.
2. Gradients are clipped by the norm of each client.
3. The optimisers work elementwise.
4. Clients may have batches of different sizes: images that only fill up a batch are masked.
5. A client that has done all its steps is left out of the later ones.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

import numpy as np
import torch
from torch import Tensor

from fedloom.common.trees import Tree, leaves, tensor_map
from fedloom.data.batch import Batch, read_ahead, shuffled_batches
from fedloom.federated import check_results
from fedloom.federated.augmentation import training_batch
from fedloom.federated.task import Cohort, Task, TrainingOptions
from fedloom.machine.transfers import to_device

# loss(task, params, received, clients, batch) -> losses [K, B], or (losses, extras); extras are
# {counter's name: [K, B, ...], "reported_loss": [K, B]}
Loss = Callable[[Task, Tree, Tree, Cohort, Batch], Tensor | tuple[Tensor, Tree]]


@dataclass
class Trained:
    """The result of local training.

    Attributes:
        params: all parameters [K, ...], both the trained ones and the others.
        loss: the reported loss of each client, averaged over its steps [K].
        steps: number of optimiser steps of each client [K].
        counters: the counters [K, ...] after training.
    """

    params: Tree
    loss: list[float]
    steps: list[int]
    counters: Tree


def make_optimizer(
    training: TrainingOptions, params: list[Tensor], lr: float
) -> torch.optim.Optimizer:
    """Return the optimiser that the training options name. All of them work elementwise."""
    decay = training.weight_decay
    if training.optimizer == "sgd":
        return torch.optim.SGD(params, lr, momentum=training.momentum, weight_decay=decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    first, second = training.betas
    return kind(params, lr, betas=(first, second), eps=training.eps, weight_decay=decay)


def learning_rate(task: Task) -> float:
    """Return the learning rate of round `task.round` (from 1) under its schedule.

    With R rounds and learning rate lr, round r has lr ("constant"), lr decay^(r - 1)
    ("exponential") or lr (1 + cos(pi (r - 1) / R)) / 2 ("cosine").
    """
    training = task.training
    past = task.round - 1
    if training.schedule == "constant":
        return training.lr
    if training.schedule == "exponential":
        return training.lr * training.decay**past
    # the schedule is "cosine"
    return training.lr * (1 + math.cos(math.pi * past / training.rounds)) / 2


def clip_factors(norms: Tensor, limit: float, epsilon: float = 0.0) -> Tensor:
    """Return the factors that scale vectors of these L2 norms down to the norm `limit`.

    A vector that is not longer than `limit` gets the factor 1. `epsilon` is added to every norm, as
    torch adds 1e-6 when it clips gradients.
    """
    return (limit / (norms + epsilon)).clamp(max=1)


def clip_gradients(params: list[Tensor], limit: float) -> None:
    """Scale each client's gradient of its parameters [K, ...] down to an L2 norm of `limit`."""
    gradients = [p.grad for p in params if p.grad is not None]
    if not gradients:
        return
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]  # [K] each
    factors = clip_factors(torch.stack(squares).sum(0).sqrt(), limit, epsilon=1e-6)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


@dataclass(frozen=True)
class Step:
    """A step of the optimiser for the clients that are still training.

    Attributes:
        active: positions of these clients in the cohort, ascending.
        rows: for each of them, the rows of its batch in the image store.
    """

    active: tuple[int, ...]
    rows: list[np.ndarray]


def _plan_steps(
    task: Task, clients: Cohort, epochs: int | None, phase: int, min_batch_size: int
) -> list[Step]:
    """Return all steps of the cohort: the clients that take part in each, and their rows.

    `epochs` is the number of epochs; None takes it from the training options. A batch with fewer
    images than `min_batch_size` makes no step.
    """
    training = task.training

    # the number of epochs (passes), and the number of steps after which to stop (None: no limit)
    count = None
    if epochs is not None:
        passes = epochs
    elif training.local_steps is not None:
        # an epoch has at least one step, so as many epochs as steps are enough
        passes = training.local_steps
        count = training.local_steps
    else:
        passes = training.epochs

    # the batches of every client
    batches_of_clients: list[list[np.ndarray]] = []
    for client, work in zip(clients.ids, clients.work, strict=True):
        # their order depends only on the seed, the round, the client and the phase
        stream = shuffled_batches(
            task.data.train[client],
            training.batch_size,
            passes,
            task.seed,
            *(task.round, client, phase),
            drop_last=training.drop_last,
        )

        # the client completes its share of the steps, of batches that are large enough
        large_enough = (rows for rows in stream if len(rows) >= min_batch_size)
        batches = list(islice(large_enough, count))
        batches_of_clients.append(batches[: math.ceil(work * len(batches))])

    # a step has the next batch of every client that has one left
    steps: list[Step] = []
    for rows in zip_longest(*batches_of_clients):
        active = tuple(k for k, row in enumerate(rows) if row is not None)
        steps.append(Step(active, [rows[k] for k in active]))
    return steps


@dataclass(frozen=True)
class ActiveClients:
    """The clients of a cohort that are still training.

    Attributes:
        positions: their positions in the cohort, int64, on the device.
        finished: the positions of all other clients.
        clients: a cohort of only these clients.
        received: what these clients received, stacked.
        are_all: True if no client has finished.
    """

    positions: Tensor
    finished: Tensor
    clients: Cohort
    received: Tree
    are_all: bool

    def select(self, tree: Tree) -> Tree:
        """Return the part of a cohort's tensors [K, ...] that belongs to these clients."""
        if self.are_all:
            return tree
        return tensor_map(lambda value: value[self.positions], tree)


def _select_active(clients: Cohort, received: Tree, active: tuple[int, ...]) -> ActiveClients:
    """Return the clients at the `active` positions of a cohort, and what they received."""
    device = clients.priors.device
    finished = [k for k in range(len(clients)) if k not in active]
    positions = to_device(np.array(active, np.int64), device)
    positions_of_finished = to_device(np.array(finished, np.int64), device)
    if finished:
        clients = clients.subset(active)
        received = tensor_map(lambda value: value[positions], received)
    return ActiveClients(positions, positions_of_finished, clients, received, not finished)


def _batches_ahead(
    task: Task, steps: list[Step], active: dict[tuple[int, ...], ActiveClients], phase: int
) -> Iterator[Batch]:
    """Yield the batch of every step. While a GPU works, the images of the next batch are read."""
    plain = task.data.batches([step.rows for step in steps])
    return read_ahead(
        training_batch(task, active[step.active].clients.ids, batch, phase, number)
        for number, (step, batch) in enumerate(zip(steps, plain, strict=True))
    )


class Counters:
    """A method's counters [K, ...], to which images add while their clients train."""

    def __init__(self, start: Tree | None):
        """Begin with copies of the tensors `start`; None if the method counts nothing."""
        self.values: Tree = tensor_map(torch.clone, start or {})
        self._are_read = start is not None
        # what the current step will add to each counter, for the active clients only
        self._waiting: list[tuple[str, Tensor]] = []

    def beside(self, params: Tree) -> Tree:
        """Return the parameters together with the current counts, as the loss gets them."""
        if not self._are_read:
            return params
        return {**params, "counters": self.values}

    def note(self, extras: Tree, mask: Tensor) -> None:
        """Remember the extras [K, B, ...] of a loss, summed over the images of the mask [K, B]."""
        for name, addition in extras.items():
            real = mask.view(*mask.shape, *[1] * (addition.dim() - 2))
            self._waiting.append((name, addition.detach().where(real, 0).sum(1)))

    def add_noted(self, positions: Tensor) -> None:
        """Add all remembered sums of a step to the counters of the clients at `positions`."""
        for name, addition in self._waiting:
            self.values[name][positions] += addition
        self._waiting = []


def _names_of_models(trained: Tree, clip_apart: tuple[str, ...]) -> list[list[str]]:
    """Return the names of the parameters of each model.

    The gradients of one model's parameters are clipped by their common norm. Each name in
    `clip_apart` is a model of its own, and all other names form one model.
    """
    together = [name for name in trained if name not in clip_apart]
    apart = [[name] for name in clip_apart]
    return [together, *apart]


def _add_gradients(
    task: Task,
    loss: Loss,
    params: Tree,
    active: ActiveClients,
    micro_batch: Batch,
    images: Tensor,
    counted: Counters,
) -> Tensor:
    """Add the gradients of a micro-batch to the parameters' gradients.

    Return the micro-batch's part of each client's mean reported loss [K].

    Args:
        params: the parameters (and counters, if there are any) of the active clients.
        images: number of each client's images in the whole batch [K].
        counted: the counters, which remember what the images add.
    """
    mask = micro_batch.mask
    result = loss(task, params, active.received, active.clients, micro_batch)
    values, extras = check_results.check_loss(
        task, active.clients.ids, mask, result, counted.values
    )

    # Differentiate the sum over clients. Clients share no parameter, so each of them gets the
    # gradient of its own mean loss.
    (values.where(mask, 0).sum(1) / images).sum().backward()

    # the loss that is logged, and what is counted
    reported = extras.pop("reported_loss", values).detach()
    counted.note(extras, mask)
    return reported.where(mask, 0).sum(1) / images


def _take_step(
    optimizer: torch.optim.Optimizer,
    trained: Tree,
    active: ActiveClients,
    project: dict[str, Tensor],
) -> None:
    """Take a step of the optimiser for the active clients only.

    `project` has matrices [d, d] by name: the step of such a parameter is multiplied by its matrix.
    """
    # keep the values from before the step, if they are needed again
    before: Tree = {}
    if project or not active.are_all:
        before = tensor_map(torch.clone, trained)

    optimizer.step()
    for name, matrix in project.items():
        trained[name].copy_(before[name] + (trained[name] - before[name]) @ matrix)
    if not active.are_all:
        _restore_finished(trained, before, active.finished)


def _restore_finished(trained: Tree, before: Tree, finished: Tensor) -> None:
    """Undo the step for clients that have finished.

    Without this, the momentum of their earlier steps would still change their parameters.
    """
    pairs = zip(leaves(trained), leaves(before), strict=True)
    for (_, value), (_, value_before) in pairs:
        value[finished] = value_before[finished]


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
    min_batch_size: int = 1,
    counters: Tree | None = None,
    project: dict[str, Tensor] | None = None,
    clip_apart: tuple[str, ...] = (),
) -> Trained:
    """Train every client of the cohort on its own images.

    The optimiser, the batch size and the clipping follow `task.training`. Every call starts with a
    fresh optimiser.

    Args:
        loss: a function of (task, params, received, clients, batch). It returns the loss [K, B] of
            every example, or a tuple of the losses and a dict. In the dict, {name: [K, B, ...]} is
            what each example adds to the counter `name`, and `reported_loss` [K, B] is logged
            instead of the loss.
        received: what the clients received from the server [K, ...].
        params: the parameters to start from [K, ...]; default: `received["params"]`.
        train: top-level names of the parameters in `params` that are trained; default: all.
        epochs: number of epochs. Default: `task.training.local_steps` steps, or if that is None,
            `task.training.epochs` epochs.
        lr: learning rate; default: `learning_rate(task)`.
        phase: number of the training phase within the round. Each phase draws its own order of
            batches.
        min_batch_size: a batch with fewer images makes no step, which is for losses that compare
            images.
        counters: the first values {name: [K, ...]} of counters. The loss reads the current values
            in `params["counters"]`.
        project: matrices [d, d] by the name of a parameter [K, P, d]. The whole step of the
            optimiser for that parameter is multiplied by its matrix.
        clip_apart: top-level names of `params` that are separate models. The gradient of each of
            them is clipped by its own norm. The gradients of all other names are clipped by one
            common norm.
    """
    # copy the parameters that are trained, and put them together with the others
    start = received["params"] if params is None else params
    names = tuple(start) if train is None else train
    trained = tensor_map(
        lambda value: value.detach().clone().requires_grad_(), {name: start[name] for name in names}
    )
    current = {**start, **trained}

    # the models; the gradient of each is clipped by its own norm
    models: list[list[Tensor]] = []
    for part in _names_of_models(trained, clip_apart):
        of_model = {name: trained[name] for name in part}
        models.append([value for _, value in leaves(of_model)])

    # one optimiser for all models
    flat = [value for _, value in leaves(trained)]
    if lr is None:
        lr = learning_rate(task)
    optimizer = make_optimizer(task.training, flat, lr)

    # for each client: counters, the sum of its losses over steps, its steps, and its images so far
    counted = Counters(counters)
    total_loss = torch.zeros(len(clients), device=flat[0].device)  # [K]
    steps_of_clients = np.zeros(len(clients), int)
    images_of_clients = np.zeros(len(clients), int)

    # Build the inputs of all steps, and start to transfer them, so that no step waits for the host.
    steps = _plan_steps(task, clients, epochs, phase, min_batch_size)
    active_clients: dict[tuple[int, ...], ActiveClients] = {}
    for step in steps:
        if step.active not in active_clients:
            active_clients[step.active] = _select_active(clients, received, step.active)
    batches = _batches_ahead(task, steps, active_clients, phase)

    for step, batch in zip(steps, batches, strict=True):
        active = active_clients[step.active]
        positions = [*step.active]
        batch.seen = tuple(images_of_clients[positions].tolist())

        # sum the gradients over the micro-batches
        optimizer.zero_grad(set_to_none=True)
        images = batch.mask.sum(1)  # [K]
        for micro_batch in batch.parts(task.training.micro_batch):
            inputs = active.select(counted.beside(current))
            reported = _add_gradients(task, loss, inputs, active, micro_batch, images, counted)
            total_loss[active.positions] += reported

        # update the parameters, and then the counters
        if task.training.clip is not None:
            for model in models:
                clip_gradients(model, task.training.clip)
        with torch.no_grad():
            _take_step(optimizer, trained, active, project or {})
        counted.add_noted(active.positions)
        steps_of_clients[positions] += 1
        images_of_clients[positions] += batch.counts

    mean_loss = total_loss.cpu().numpy() / steps_of_clients.clip(1)
    return Trained(
        params=tensor_map(torch.Tensor.detach, current),
        loss=mean_loss.tolist(),
        steps=steps_of_clients.tolist(),
        counters=counted.values,
    )
