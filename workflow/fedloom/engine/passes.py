"""Passes over clients' images without training: prototypes and evaluation."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data.federation import Batch
from fedloom.engine.task import Cohort, Task

IMAGES_AT_ONCE = 256


def slices(task: Task, rows: list[np.ndarray]) -> Iterator[Batch]:
    """All rows of K clients in order, as batches [K, B] of at most IMAGES_AT_ONCE images."""
    width = max(1, IMAGES_AT_ONCE // len(rows))
    first = [int(row[0]) for row in rows]
    for start in range(0, max(map(len, rows)), width):
        yield task.data.batch([row[start : start + width] for row in rows], first)


@torch.no_grad()
def class_means(task: Task, clients: Cohort, tokens: Callable[[Cohort, Batch], Tensor]) -> Tensor:
    """Each client's mean token of every class over its training images (PEP-FedPT, Eq. 10).

    Args:
        tokens: of a batch, [K, B, S, d], for S places in the network.

    Returns:
        [K, S, C, d]; zeros for a class of which the client has no image.
    """
    total, count = 0, 0
    for batch in slices(task, [task.data.train[k] for k in clients.ids]):
        one_hot = F.one_hot(batch.labels, task.num_classes) * batch.mask[..., None]  # [K, B, C]
        one_hot = one_hot.float()
        total = total + torch.einsum("kbc,kbsd->kscd", one_hot, tokens(clients, batch))
        count = count + one_hot.sum(1)  # [K, C]
    return total / count.clamp(min=1)[:, None, :, None]
