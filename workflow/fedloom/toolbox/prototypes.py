"""The class prototypes that the server starts with (warm start)."""

import torch
import torch.nn.functional as F
from torch import Tensor


def warm_start(
    inputs: Tensor, labels: Tensor, clients: list[Tensor], num_classes: int
) -> dict[str, Tensor]:
    """Return the fields of a `WarmStart` (PEP-FedPT, Eq. 18-19).

    Args:
        inputs: class tokens [N, M, d] of all images at the input of each block, without prompts.
        labels: the labels of all images [N].
        clients: for each client of the first sample S_0, the rows of its training images. If a
            client does not hold a class, its mean of that class counts as zeros.
    """
    blocks, width = inputs.shape[1:]
    total = torch.zeros(blocks, num_classes, width)
    spread = torch.zeros(blocks, num_classes)
    count = torch.zeros(num_classes, dtype=torch.int64)
    for rows in clients:
        # the cache may store tokens in half precision
        tokens = inputs[rows].float()
        one_hot = F.one_hot(labels[rows], num_classes)  # [n, C]

        # the client's mean token of each class
        means = torch.einsum("nc,nmd->mcd", one_hot.float(), tokens)
        means /= one_hot.sum(0).clamp(min=1)[None, :, None]

        # the largest distance between one of its tokens and the mean of the token's class
        distance = (tokens - means[:, labels[rows]].transpose(0, 1)).abs().sum(-1)  # [n, M]
        spread = torch.maximum(spread, (distance[:, :, None] * one_hot[:, None]).amax(0))

        # a class that the client does not hold adds zeros here
        total += means
        count += one_hot.sum(0)
    return {"mean": total / len(clients), "spread": spread, "count": count}
