"""Passes over clients' images without training: prototypes and evaluation."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data.federation import Batch
from fedloom.engine.task import Cohort, Task
from fedloom.engine.tree import Tree

IMAGES_AT_ONCE = 256
FEATURES_AT_ONCE = 4096  # logits of 1000 classes are then 16 MB


def slices(task: Task, rows: list[np.ndarray]) -> Iterator[Batch]:
    """All rows of K clients in order, as batches [K, B] of at most IMAGES_AT_ONCE images.

    Of FEATURES_AT_ONCE for a method to which an image is its feature: it encodes its prompts once
    for every batch, however large.
    """
    width = max(1, (FEATURES_AT_ONCE if task.features_only else IMAGES_AT_ONCE) // len(rows))
    first = [int(row[0]) for row in rows]
    for start in range(0, max(map(len, rows)), width):
        yield task.data.batch([row[start : start + width] for row in rows], first)


@torch.no_grad()
def class_means(
    task: Task, clients: Cohort, tokens: Callable[[Cohort, Batch], Tensor]
) -> tuple[Tensor, Tree]:
    """Each client's mean token of every class over its training images (PEP-FedPT, Eq. 10).

    Args:
        tokens: of a batch, [K, B, S, d], for S places in the network.

    Returns:
        Means [K, S, C, d], zeros for a class of which the client has no image; and for wrappers
        `spread` [K, S, C], the largest L1 distance of a token to the mean of its class (PEP-FedPT,
        A.4.1), and `count` [K, C], the images of the class.
    """
    seen, total, count = [], 0, 0
    for batch in slices(task, [task.data.train[k] for k in clients.ids]):
        one_hot = F.one_hot(batch.labels, task.num_classes) * batch.mask[..., None]  # [K, B, C]
        found = tokens(clients, batch)
        total = total + torch.einsum("kbc,kbsd->kscd", one_hot.float(), found)
        count = count + one_hot.sum(1)  # [K, C]
        seen.append((one_hot.bool(), found))
    mean = total / count.clamp(min=1)[:, None, :, None]
    spread = torch.zeros(mean.shape[:3], device=mean.device)
    for belongs, found in seen:
        own = torch.einsum("kbc,kscd->kbsd", belongs.float(), mean)
        distance = (found - own).abs().sum(-1)  # [K, B, S]
        of_class = distance[..., None] * belongs[:, :, None]  # [K, B, S, C]
        spread = torch.maximum(spread, of_class.amax(1))
    return mean, {"spread": spread, "count": count}
