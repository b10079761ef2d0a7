"""How many clients train, or are evaluated, as one batch, and how many images at once.

As many as fit into memory, by the sizes of states and of what training keeps for the backward
pass. On a CPU, what a step has in flight should also fit its caches: a larger batch is then no
faster, and needs more memory.
"""

from itertools import pairwise
from typing import Any

import torch

from fedloom.common.activations import SAVED
from fedloom.common.tensors import Tree, count_bytes
from fedloom.federated.task import Task

# What is trained is there about five times: as received, as trained, its gradient, one or two
# moments of the optimiser. A ViT-B/16 of 343 MB is thus a group of its own, prompts never are.
BYTES_AT_ONCE = 256 * 2**20

# What is between two blocks of a backbone, on a CPU: 80 images of the micro ViT. A client, or
# FEWEST images, may be more: else a large backbone would read its weights for every image.
FLOATS_AT_ONCE = 2**17
FEWEST = 16

GPU_SHARE = 0.5  # of a GPU's memory, for what training keeps for the backward pass

# What prompts before all classes are at the inputs of a text tower's blocks, on a CPU, since all of
# it is kept for the backward pass: 1,000 classes of five clients of the micro CLIP, or 100 classes
# of two with the tower of a ViT-B-16.
TEXT_FLOATS_AT_ONCE = 6 * 2**20

IMAGES_AT_ONCE = 256  # of a pass without training
FEATURES_AT_ONCE = 4096  # logits of 1000 classes are then 16 MB


def clients_at_once(task: Task[Any], *states: Tree) -> int:
    """Return how many clients may train as one batch, at least one.

    It follows from sizes and the kind of device alone (of a GPU, its whole memory and not what is
    free of it), so that a run is divided alike on all machines with the same. Clients that depend
    on each other (`task.whole_cohorts`) are never divided, whatever their size.

    Args:
        states: what one client receives and keeps.
    """
    if not task.stacked:
        return 1
    if task.whole_cohorts:
        return task.data.num_clients
    fit = _stackable(*states)
    batch, part = task.training.batch_size, task.training.micro_batch
    images = min(batch, part or batch) if "images" in task.encodes else 0
    if task.data.device.type == "cuda":
        kept = images * task.backbone.training_bytes + _text_bytes(task)
        return max(1, min(fit, int(_room(task.data.device) / kept)) if kept else fit)
    share = images * task.backbone.image_floats / FLOATS_AT_ONCE + _text_share(task)
    return max(1, min(fit, int(1 / share)) if share else fit)


def clients_evaluated_at_once(task: Task[Any], *states: Tree) -> int:
    """Return how many clients may be evaluated as one batch, however few images they have.

    Args:
        states: see `clients_at_once`.
    """
    if not task.stacked:
        return 1
    fit, share = min(_stackable(*states), images_at_once(task)), _text_share(task)
    return max(1, min(fit, int(1 / share)) if share else fit)


def images_at_once(task: Task[Any]) -> int:
    """Return how many images a pass without training encodes, or reads features of, at once."""
    if task.features_only:
        return FEATURES_AT_ONCE
    if task.data.device.type != "cpu":
        return IMAGES_AT_ONCE
    return min(IMAGES_AT_ONCE, max(FEWEST, FLOATS_AT_ONCE // task.backbone.image_floats))


def groups(count: int, width: int) -> list[range]:
    """Divide `count` >= 1 clients in order into as few groups of at most `width` as there can be.

    They are of equal size, or differ by one.
    """
    parts = -(-count // width)
    starts = [-(-count * part // parts) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def groups_by_images(sizes: list[int], width: int, images: int) -> list[range]:
    """Divide clients in order into groups of at most `width`, each of which is one batch.

    Args:
        sizes: number of images of each client, ascending.
        images: size of a batch, in which every client has as many images as the last one; a client
            with more is a group of its own.
    """
    parts, start = [], 0
    for stop in range(1, len(sizes) + 1):
        full = stop == len(sizes) or stop - start == width
        if full or (stop + 1 - start) * sizes[stop] > images:
            parts.append(range(start, stop))
            start = stop
    return parts


def _stackable(*states: Tree) -> int:
    """Return how many clients' states fit into memory, at least one."""
    return max(1, BYTES_AT_ONCE // max(1, sum(count_bytes(state) for state in states)))


def _room(device: torch.device) -> float:
    """Return the bytes of a GPU that training may keep for the backward pass."""
    return GPU_SHARE * torch.cuda.get_device_properties(device).total_memory


def _text_bytes(task: Task[Any]) -> int:
    """Return the bytes that training keeps of a client's prompts before all classes."""
    if "texts" not in task.encodes:
        return 0
    return 4 * SAVED * task.backbone.text_floats(task.data.classes)


def _text_share(task: Task[Any]) -> float:
    """Return which part of what is in flight at once a client's prompts before all classes are."""
    if "texts" not in task.encodes:
        return 0.0
    return task.backbone.text_floats(task.data.classes) / TEXT_FLOATS_AT_ONCE
