"""Split clients and images into batches that are trained or evaluated together."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from fedloom.common.trees import Tree, count_bytes
from fedloom.data.batch import Batch, read_ahead
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.machine import memory, transfers
from fedloom.machine.memory import ClientStep


def clients_trained_at_once(task: Task[Any], *states: Tree) -> int:
    """Return how many clients may train as one batch.

    `states` are the trees that each client receives and keeps.
    """
    step = client_step(task, *states)
    return memory.cohort_size(
        task.data.num_clients,
        step,
        _free_activation_bytes(task, step),
        task.limits,
        stacked=task.declared.stacked,
        whole_cohorts=task.declared.whole_cohorts,
    )


def _free_activation_bytes(task: Task[Any], step: ClientStep) -> float | None:
    """Return how many bytes the activations of a step may take on a GPU; None on a CPU."""
    device = task.data.device
    if device.type != "cuda":
        return None

    # what else lies on the GPU: weights, images or their patches, and the states of clients
    weights = sum(value.nbytes for value in task.backbone.model.parameters())
    if task.data.patches is not None:
        images = task.data.patches().nbytes
    elif step.images:
        images = task.data.store.nbytes
    else:
        images = 0
    kept = step.states(task.clients_per_round, task.limits)
    return memory.free_activation_bytes(transfers.gpu_bytes(device), weights, kept, images)


def client_step(task: Task[Any], *states: Tree) -> ClientStep:
    """Return the sizes of one client's training step.

    `states` are the trees that the client receives and keeps.
    """
    # the number of images whose activations are kept at once, and how often those of all texts are
    at_once = memory.images_of_a_step(task.training.batch_size, task.training.micro_batch)
    images, texts = memory.forward_counts(
        task.declared.forward_inputs, task.declared.passes, at_once
    )

    return ClientStep(
        state_bytes=sum(map(count_bytes, states)),
        images=images,
        image_floats=task.backbone.image_floats,
        image_bytes=task.backbone.training_bytes,
        text_floats=_floats_of_texts(task, texts),
        prompt_floats=task.declared.prompts * task.backbone.width,
        trains_weights=task.declared.trains_weights,
    )


def _floats_of_texts(task: Task[Any], texts: float) -> float:
    """Return how many floats a step keeps if it encodes all class names `texts` times."""
    if not texts:
        return 0
    return texts * task.backbone.text_floats(task.data.classes)


def clients_evaluated_at_once(task: Task[Any], state: State) -> int:
    """Return how many clients may be evaluated as one batch, even if each has only a few images."""
    if not task.declared.stacked:
        return 1
    sent = {key: state.server.get(key, {}) for key in ("params", "constants")}
    one_client = next(iter(state.clients.values()), {})
    _, texts = memory.forward_counts(task.declared.forward_inputs, task.declared.passes, 1)
    step = ClientStep(
        state_bytes=count_bytes(sent) + count_bytes(one_client),
        text_floats=_floats_of_texts(task, texts),
    )
    return min(memory.max_clients(step, limits=task.limits), images_per_pass(task))


def images_per_pass(task: Task[Any]) -> int:
    """Return how many images a pass without training encodes at once.

    For a method that reads only cached features, it is the number of images whose features are read
    at once.
    """
    if task.declared.features_only:
        return task.limits.features
    on_gpu = task.data.device.type != "cpu"
    return memory.max_images_per_pass(task.backbone.image_floats, on_gpu, task.limits)


def equal_groups(count: int, width: int) -> list[range]:
    """Split `count` clients, in order, into the fewest groups of at most `width` clients.

    The groups have equal sizes, up to one client.
    """
    group_count = -(-count // width)
    starts = [-(-count * group // group_count) for group in range(group_count + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def groups_by_images(sizes: list[int], width: int, images: int) -> list[range]:
    """Split clients, in order, into groups whose batch has at most `images` images.

    A group has at most `width` clients. `sizes` are the clients' numbers of images, ascending.
    Every client of a batch takes as much room as the last one, which has the most images. A client
    with more than `images` images is a group of its own.
    """
    groups: list[range] = []
    start = 0
    for stop in range(1, len(sizes) + 1):
        # end the group here if another client would make it too large
        full = stop == len(sizes) or stop - start == width
        if full or (stop + 1 - start) * sizes[stop] > images:
            groups.append(range(start, stop))
            start = stop
    return groups


def iterate_examples(task: Task, rows: list[np.ndarray]) -> Iterator[Batch]:
    """Yield all images of K clients, in order, as batches [K, B].

    A batch has at most `images_per_pass` images. Where a client has run out of images, `batch.mask`
    is false, and the client's first image fills up the batch.

    Args:
        rows: for each client, the rows of its images in the image store.
    """
    # the fewest batches, of about equal size
    longest = max(map(len, rows))
    batch_count = -(-longest // max(1, images_per_pass(task) // len(rows)))
    width = -(-longest // batch_count)

    # each batch has the next rows of every client; a client may have no rows left
    batches: list[list[np.ndarray]] = []
    for start in range(0, longest, width):
        batches.append([row[start : start + width] for row in rows])
    first = [int(row[0]) for row in rows]
    yield from read_ahead(task.data.batches(batches, first))
