"""The class prototypes of a client."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Task, Tree


@torch.no_grad()
def class_means(
    task: Task, clients: Cohort, tokens: Callable[[Cohort, Batch], Tensor]
) -> tuple[Tensor, Tree]:
    """Return the mean token of each class over each client's training images (Eq. 10).

    Args:
        tokens: a function of (clients, batch) that returns tokens [K, B, S, d] of S blocks.

    Returns:
        1. The means [K, S, C, d]. They are zero for classes that the client does not hold.
        2. Statistics for wrappers: `spread` [K, S, C], the largest L1 distance between a token and
           the mean of its class (A.4.1), and `count` [K, C], the number of images of each class.
    """
    # the mean token of each class
    seen = []
    total = torch.zeros(())
    count = torch.zeros((), dtype=torch.int64)
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        one_hot = F.one_hot(batch.labels, task.num_classes) * batch.mask[..., None]  # [K, B, C]
        values = tokens(clients, batch)  # [K, B, S, d]
        total = total + torch.einsum("kbc,kbsd->kscd", one_hot.float(), values)
        count = count + one_hot.sum(1)  # [K, C]
        seen.append((one_hot.bool(), values))
    mean = total / count.clamp(min=1)[:, None, :, None]  # [K, S, C, d]

    # the largest distances between a token and the mean of its class
    spread = torch.zeros(mean.shape[:3], device=mean.device)
    for belongs, values in seen:
        own = torch.einsum("kbc,kscd->kbsd", belongs.float(), mean)  # [K, B, S, d]
        distance = (values - own).abs().sum(-1)  # [K, B, S]
        distance_by_class = distance[..., None] * belongs[:, :, None]  # [K, B, S, C]
        spread = torch.maximum(spread, distance_by_class.amax(1))
    return mean, {"spread": spread, "count": count}
