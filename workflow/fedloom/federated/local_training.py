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
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.backbones.compiled import compile_blocks
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import Tree, leaves, tensor_map
from fedloom.data.batch import Batch
from fedloom.federated import check_results
from fedloom.federated.local_steps import ActiveClients, iterate_steps
from fedloom.federated.logit_offsets import adding_to_logits
from fedloom.federated.task import Cohort, Task, TrainingOptions

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
    adam = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    first, second = training.betas
    return adam(params, lr, betas=(first, second), eps=training.eps, weight_decay=decay)


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


def _clip_gradients(params: list[Tensor], limit: float) -> None:
    """Scale each client's gradient of its parameters [K, ...] down to an L2 norm of `limit`."""
    gradients = [p.grad for p in params if p.grad is not None]
    if not gradients:
        return
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]  # [K] each
    factors = clip_factors(torch.stack(squares).sum(0).sqrt(), limit, epsilon=1e-6)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


class _Counters:
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


class _Progress:
    """What each client of a cohort has done so far."""

    def __init__(self, clients: int, device: torch.device):
        """Begin with no steps of K clients."""
        # the sum over its steps of each client's mean reported loss [K]
        self._total_loss = torch.zeros(clients, device=device)
        # the number of its steps [K], and of its images in them [K]
        self._steps = np.zeros(clients, int)
        self._images = np.zeros(clients, int)

    def images_seen(self, active: ActiveClients) -> tuple[int, ...]:
        """Return how many images each active client has trained on, repeated ones included."""
        return tuple(self._images[active.indices].tolist())

    def add_loss(self, active: ActiveClients, loss: Tensor) -> None:
        """Add a part of the mean reported loss of the current step, for the active clients."""
        self._total_loss[active.positions] += loss

    def count_step(self, active: ActiveClients, batch: Batch) -> None:
        """Count a step of the active clients, and the images of its batch."""
        self._steps[active.indices] += 1
        self._images[active.indices] += batch.counts

    def steps(self) -> list[int]:
        """Return the number of each client's steps [K]."""
        return self._steps.tolist()

    def mean_loss(self) -> list[float]:
        """Return the mean of each client's losses over its steps [K]; 0 without steps."""
        return (self._total_loss.cpu().numpy() / self._steps.clip(1)).tolist()


def _trainable_copies(params: Tree, names: tuple[str, ...] | None) -> Tree:
    """Return copies of the parameters of these names, which have gradients; None: of all names."""
    if names is None:
        names = tuple(params)
    return tensor_map(
        lambda value: value.detach().clone().requires_grad_(),
        {name: params[name] for name in names},
    )


def _tensors(tree: Tree) -> list[Tensor]:
    """Return all tensors of a tree of tensors."""
    return [value for _, value in leaves(tree)]


def _models_to_clip(trained: Tree, clip_apart: tuple[str, ...]) -> list[list[Tensor]]:
    """Return the parameters of each model.

    The gradients of one model's parameters are clipped by their common norm. Each name in
    `clip_apart` is a model of its own, and all other names form one model.
    """
    together = {name: value for name, value in trained.items() if name not in clip_apart}
    apart = [{name: trained[name]} for name in clip_apart]
    return [_tensors(model) for model in (together, *apart)]


def _is_full(task: Task, active: ActiveClients, micro_batch: Batch) -> bool:
    """Return True if a step has all clients of the cohort, and a batch of the full width.

    The width is that of the largest batch, or micro-batch, of a client in this step.
    """
    size = task.training.micro_batch or task.training.batch_size
    return active.are_all and micro_batch.mask.shape[1] == size


def _add_gradients(
    task: Task,
    loss: Loss,
    params: Tree,
    active: ActiveClients,
    micro_batch: Batch,
    images: Tensor,
    counted: _Counters,
) -> Tensor:
    """Add the gradients of a micro-batch to the parameters' gradients.

    Return the micro-batch's part of each client's mean reported loss [K].

    Args:
        params: the parameters (and counters, if there are any) of the active clients.
        images: number of each client's images in the whole batch [K].
        counted: the counters, which remember what the images add.
    """
    mask = micro_batch.mask
    offsets = active.clients.logit_offsets
    with adding_to_logits(offsets) as announced:
        result = loss(task, params, active.received, active.clients, micro_batch)
    if offsets is not None and not announced.used:
        raise FedLoomError(
            f"{task.method}: its loss must call cross_entropy of the toolbox, since a wrapper adds "
            "offsets to the logits in training; declare takes_logit_offsets = false in its "
            "method.toml, or leave the wrapper out"
        )
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
    trained = _trainable_copies(start, train)
    current = {**start, **trained}

    # one optimiser for all models; the gradient of each model is clipped by its own norm
    models = _models_to_clip(trained, clip_apart)
    tensors = _tensors(trained)
    if lr is None:
        lr = learning_rate(task)
    optimizer = make_optimizer(task.training, tensors, lr)

    counted = _Counters(counters)
    progress = _Progress(len(clients), tensors[0].device)
    steps = iterate_steps(
        task, clients, received, epochs=epochs, phase=phase, min_batch_size=min_batch_size
    )
    for active, batch in steps:
        batch.seen = progress.images_seen(active)

        # sum the gradients over the micro-batches
        optimizer.zero_grad(set_to_none=True)
        images = batch.mask.sum(1)  # [K]
        for micro_batch in batch.parts(task.training.micro_batch):
            inputs = active.select(counted.beside(current))
            with compile_blocks(task.backbone.compiles and _is_full(task, active, micro_batch)):
                reported = _add_gradients(task, loss, inputs, active, micro_batch, images, counted)
            progress.add_loss(active, reported)

        # update the parameters, and then the counters
        if task.training.clip is not None:
            for model in models:
                _clip_gradients(model, task.training.clip)
        with torch.no_grad():
            _take_step(optimizer, trained, active, project or {})
        counted.add_noted(active.positions)
        progress.count_step(active, batch)

    return Trained(
        params=tensor_map(torch.Tensor.detach, current),
        loss=progress.mean_loss(),
        steps=progress.steps(),
        counters=counted.values,
    )
