"""The steps of local training: which clients take part in each, and with which images."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

import numpy as np
from torch import Tensor

from fedloom.common.trees import Tree, tensor_map
from fedloom.data.batch import Batch, read_ahead, shuffled_batches
from fedloom.federated.augmentation import training_batch
from fedloom.federated.task import Cohort, Task
from fedloom.machine.transfers import to_device


@dataclass(frozen=True)
class ActiveClients:
    """The clients of a cohort that are still training.

    Attributes:
        indices: their positions in the cohort, ascending.
        positions: the same, int64, on the device.
        finished: the positions of all other clients, int64, on the device.
        clients: a cohort of only these clients.
        received: what these clients received, stacked.
        are_all: True if no client has finished.
    """

    indices: list[int]
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


def iterate_steps(
    task: Task,
    clients: Cohort,
    received: Tree,
    *,
    epochs: int | None,
    phase: int,
    min_batch_size: int,
) -> Iterator[tuple[ActiveClients, Batch]]:
    """Yield the clients of each step that are still training, and their batch.

    The arguments are those of `train_locally`.
    """
    # Build the inputs of all steps, and start to transfer them, so that no step waits for the host.
    steps = _plan_steps(task, clients, epochs, phase, min_batch_size)
    active_clients: dict[tuple[int, ...], ActiveClients] = {}
    for step in steps:
        if step.active not in active_clients:
            active_clients[step.active] = _select_active(clients, received, step.active)

    batches = _batches_ahead(task, steps, active_clients, phase)
    for step, batch in zip(steps, batches, strict=True):
        yield active_clients[step.active], batch


@dataclass(frozen=True)
class _Step:
    """A step of the optimiser for the clients that are still training.

    Attributes:
        active: positions of these clients in the cohort, ascending.
        rows: for each of them, the rows of its batch in the image store.
    """

    active: tuple[int, ...]
    rows: list[np.ndarray]


def _plan_steps(
    task: Task, clients: Cohort, epochs: int | None, phase: int, min_batch_size: int
) -> list[_Step]:
    """Return all steps of the cohort: the clients that take part in each, and their rows.

    `epochs` is the number of epochs; None takes it from the training options. A batch with fewer
    images than `min_batch_size` makes no step.
    """
    # the number of epochs, and the number of steps after which to stop (None: no limit)
    training = task.training
    max_steps = None
    if epochs is None and training.local_steps is not None:
        # an epoch has at least one step, so as many epochs as steps are enough
        epochs = training.local_steps
        max_steps = training.local_steps
    elif epochs is None:
        epochs = training.epochs

    # the batches of every client
    batches_of_clients: list[list[np.ndarray]] = []
    for client, work in zip(clients.ids, clients.work, strict=True):
        # their order depends only on the seed, the round, the client and the phase
        stream = shuffled_batches(
            task.data.train[client],
            training.batch_size,
            epochs,
            task.seed,
            *(task.round, client, phase),
            drop_last=training.drop_last,
        )

        # the client completes its share of the steps, of batches that are large enough
        large_enough = (rows for rows in stream if len(rows) >= min_batch_size)
        batches = list(islice(large_enough, max_steps))
        batches_of_clients.append(batches[: math.ceil(work * len(batches))])

    # a step has the next batch of every client that has one left
    steps: list[_Step] = []
    for rows in zip_longest(*batches_of_clients):
        active = tuple(k for k, row in enumerate(rows) if row is not None)
        steps.append(_Step(active, [rows[k] for k in active]))
    return steps


def _select_active(clients: Cohort, received: Tree, active: tuple[int, ...]) -> ActiveClients:
    """Return the clients at the `active` positions of a cohort, and what they received."""
    device = clients.priors.device
    finished = [k for k in range(len(clients)) if k not in active]
    positions = to_device(np.array(active, np.int64), device)
    positions_of_finished = to_device(np.array(finished, np.int64), device)
    if finished:
        clients = clients.subset(active)
        received = tensor_map(lambda value: value[positions], received)
    return ActiveClients(
        indices=[*active],
        positions=positions,
        finished=positions_of_finished,
        clients=clients,
        received=received,
        are_all=not finished,
    )


def _batches_ahead(
    task: Task, steps: list[_Step], active_clients: dict[tuple[int, ...], ActiveClients], phase: int
) -> Iterator[Batch]:
    """Yield the batch of every step. While a GPU works, the images of the next batch are read."""
    plain = task.data.batches([step.rows for step in steps])
    return read_ahead(
        training_batch(task, active_clients[step.active].clients.ids, batch, phase, number)
        for number, (step, batch) in enumerate(zip(steps, plain, strict=True))
    )
