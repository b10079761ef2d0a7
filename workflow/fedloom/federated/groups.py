"""Divide clients and images into the batches that train, or are evaluated, at once.

How much fits is in `fedloom.common.memory`.
"""

from itertools import pairwise
from typing import Any

import torch

from fedloom.common import memory
from fedloom.common.memory import ClientStep
from fedloom.common.tensors import Tree, count_bytes
from fedloom.federated.task import Task

FEATURES_AT_ONCE = 4096  # logits of 1000 classes are then 16 MB


def clients_at_once(task: Task[Any], *states: Tree) -> int:
    """Return how many clients may train as one batch, at least one.

    Clients that depend on each other (`task.whole_cohorts`) are never divided.

    Args:
        states: what one client receives and keeps.
    """
    if not task.stacked:
        return 1
    if task.whole_cohorts:
        return task.data.num_clients
    batch, micro_batch = task.training.batch_size, task.training.micro_batch
    step = ClientStep(
        sum(count_bytes(state) for state in states),
        min(batch, micro_batch or batch) if "images" in task.forward_inputs else 0,
        task.backbone.image_floats,
        task.backbone.training_bytes,
        _text_floats(task),
    )
    device = task.data.device
    on_gpu = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if on_gpu else None
    return memory.clients_at_once(step, total)


def clients_evaluated_at_once(task: Task[Any], *states: Tree) -> int:
    """Return how many clients may be evaluated as one batch, however few images they have.

    Args:
        states: see `clients_at_once`.
    """
    if not task.stacked:
        return 1
    step = ClientStep(sum(count_bytes(s) for s in states), text_floats=_text_floats(task))
    return min(memory.clients_at_once(step), images_at_once(task))


def images_at_once(task: Task[Any]) -> int:
    """Return how many images a pass without training encodes, or reads features of, at once."""
    if task.features_only:
        return FEATURES_AT_ONCE
    return memory.images_at_once(task.backbone.image_floats, task.data.device.type != "cpu")


def _text_floats(task: Task[Any]) -> int:
    """Return the floats of a client's prompts before all classes, which training keeps."""
    return task.backbone.text_floats(task.data.classes) if "texts" in task.forward_inputs else 0


def groups(count: int, width: int) -> list[range]:
    """Divide `count` >= 1 clients in order into as few groups of at most `width` as there can be.

    They are of equal size, or differ by one.
    """
    number = -(-count // width)
    starts = [-(-count * group // number) for group in range(number + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def groups_by_images(sizes: list[int], width: int, images: int) -> list[range]:
    """Divide clients in order into groups of at most `width`, each of which is one batch.

    Args:
        sizes: number of images of each client, ascending.
        images: size of a batch, in which every client has as many images as the last one; a client
            with more is alone in its group.
    """
    result, start = [], 0
    for stop in range(1, len(sizes) + 1):
        full = stop == len(sizes) or stop - start == width
        if full or (stop + 1 - start) * sizes[stop] > images:
            result.append(range(start, stop))
            start = stop
    return result
