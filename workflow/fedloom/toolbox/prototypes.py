"""Class prototypes: those of each client, and the warm start that the server begins with."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.tensors import Tree
from fedloom.data.federation import Batch
from fedloom.federated.groups import iterate_examples
from fedloom.federated.task import Cohort, Task


@torch.no_grad()
def class_means(
    task: Task, clients: Cohort, tokens: Callable[[Cohort, Batch], Tensor]
) -> tuple[Tensor, Tree]:
    """Average each client's tokens of every class over its training images (PEP-FedPT, Eq. 10).

    `tokens` is a function of (clients, batch) that returns tokens [K, B, S, d], of S blocks.

    Returns:
        Means [K, S, C, d], zeros for a class of which the client has no image; and statistics for
        wrappers: `spread` [K, S, C], the largest L1 distance of a token to the mean of its class
        (PEP-FedPT, A.4.1), and `count` [K, C], the number of images of the class.
    """
    seen = []
    total, count = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    for batch in iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        one_hot = F.one_hot(batch.labels, task.num_classes) * batch.mask[..., None]  # [K, B, C]
        values = tokens(clients, batch)  # [K, B, S, d]
        total = total + torch.einsum("kbc,kbsd->kscd", one_hot.float(), values)
        count = count + one_hot.sum(1)  # [K, C]
        seen.append((one_hot.bool(), values))
    mean = total / count.clamp(min=1)[:, None, :, None]  # [K, S, C, d]
    spread = torch.zeros(mean.shape[:3], device=mean.device)
    for belongs, values in seen:
        own = torch.einsum("kbc,kscd->kbsd", belongs.float(), mean)
        distance = (values - own).abs().sum(-1)  # [K, B, S]
        of_class = distance[..., None] * belongs[:, :, None]  # [K, B, S, C]
        spread = torch.maximum(spread, of_class.amax(1))
    return mean, {"spread": spread, "count": count}


def warm_start(
    inputs: Tensor, labels: Tensor, clients: list[Tensor], num_classes: int
) -> dict[str, Tensor]:
    """Compute the prototypes that the server starts with (PEP-FedPT, Eq. 18-19).

    Args:
        inputs: unprompted class tokens [N, M, d] of all images, at the input of each block.
        labels: of all images [N].
        clients: rows of the training images of each client of the first sample, S_0.

    Returns:
        `mean`, `spread` and `count` of a `WarmStart`, over S_0; a class that a client does not hold
        counts as zeros.
    """
    blocks, width = inputs.shape[1:]
    total = torch.zeros(blocks, num_classes, width)
    spread = torch.zeros(blocks, num_classes)
    count = torch.zeros(num_classes, dtype=torch.int64)
    for rows in clients:
        one_hot = F.one_hot(labels[rows], num_classes)  # [n, C]
        tokens = inputs[rows].float()  # the cache may be half as wide
        means = torch.einsum("nc,nmd->mcd", one_hot.float(), tokens)
        means /= one_hot.sum(0).clamp(min=1)[None, :, None]
        distance = (tokens - means[:, labels[rows]].transpose(0, 1)).abs().sum(-1)  # [n, M]
        spread = torch.maximum(spread, (distance[:, :, None] * one_hot[:, None]).amax(0))
        total += means
        count += one_hot.sum(0)
    return {"mean": total / len(clients), "spread": spread, "count": count}
