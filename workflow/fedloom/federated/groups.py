"""Divide clients and images into the batches that train, or are evaluated, at once."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from fedloom.common.trees import Tree, count_bytes
from fedloom.data import federation
from fedloom.data.federation import Batch, read_ahead
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.machine import memory
from fedloom.machine.memory import ClientStep

FEATURES_AT_ONCE = 4096  # logits of 1000 classes are then 16 MB


def clients_at_once(task: Task[Any], *states: Tree) -> int:
    """Return how many clients, who receive and keep `states` each, may train as one batch."""
    if not task.stacked:
        return 1
    if task.whole_cohorts:  # clients that depend on each other are never divided
        return task.data.num_clients
    step, device = client_step(task, *states), task.data.device
    room = None  # the bytes that activations may take on a GPU
    if device.type == "cuda":
        weights = sum(value.nbytes for value in task.backbone.model.parameters())
        of_images = task.data.store.nbytes if step.images else 0
        images = of_images if task.data.patches is None else task.data.patches().nbytes
        kept = step.states(task.clients_per_round)
        room = memory.activation_bytes(federation.gpu_bytes(device), weights, kept, images)
    return memory.clients_at_once(step, room)


def client_step(task: Task[Any], *states: Tree) -> ClientStep:
    """Return the sizes of a client's step of training; it receives and keeps `states`."""
    batch, micro_batch = task.training.batch_size, task.training.micro_batch
    most = min(batch, micro_batch or batch)
    images, texts = memory.encoded(task.forward_inputs, task.passes, most)
    size, of_image = sum(map(count_bytes, states)), task.backbone.image_floats
    text_floats = texts * task.backbone.text_floats(task.data.classes) if texts else 0
    kept, prompts = task.backbone.training_bytes, task.prompts * task.backbone.width
    return ClientStep(size, images, of_image, kept, text_floats, prompts, task.trains_weights)


def clients_evaluated_at_once(task: Task[Any], state: State) -> int:
    """Return how many clients may be evaluated as one batch, however few images they have."""
    if not task.stacked:
        return 1
    sent = {key: state.server.get(key, {}) for key in ("params", "constants")}
    size = count_bytes(sent) + count_bytes(next(iter(state.clients.values()), {}))
    _, texts = memory.encoded(task.forward_inputs, task.passes, 1)
    floats = texts * task.backbone.text_floats(task.data.classes) if texts else 0
    return min(memory.clients_at_once(ClientStep(size, text_floats=floats)), images_at_once(task))


def images_at_once(task: Task[Any]) -> int:
    """Return how many images a pass without training encodes, or reads features of, at once."""
    if task.features_only:
        return FEATURES_AT_ONCE
    return memory.images_at_once(task.backbone.image_floats, task.data.device.type != "cpu")


def divide(count: int, width: int) -> list[range]:
    """Divide `count` clients in order into as few groups of at most `width` as there can be."""
    number = -(-count // width)
    starts = [-(-count * group // number) for group in range(number + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def groups_by_images(sizes: list[int], width: int, images: int) -> list[range]:
    """Divide clients in order into groups of at most `width`, each a batch of at most `images`.

    A batch has the images of its last client for each, of ascending `sizes`; a larger one is alone.
    """
    result, start = [], 0
    for stop in range(1, len(sizes) + 1):
        full = stop == len(sizes) or stop - start == width
        if full or (stop + 1 - start) * sizes[stop] > images:
            result.append(range(start, stop))
            start = stop
    return result


def iterate_examples(task: Task, rows: list[np.ndarray]) -> Iterator[Batch]:
    """Yield all rows of K clients in order, as batches [K, B] of at most `images_at_once` images.

    Where a client has run out of images, `batch.mask` is false and its first image fills up.
    """
    longest = max(map(len, rows))
    number = -(-longest // max(1, images_at_once(task) // len(rows)))
    width = -(-longest // number)  # batches of about equal size
    first = [int(row[0]) for row in rows]
    batches = [[row[k : k + width] for row in rows] for k in range(0, longest, width)]
    yield from read_ahead(task.data.batches(batches, first))
