"""What the server starts with, computed before any round."""

import torch
import torch.nn.functional as F
from torch import Tensor


def warm_start(
    inputs: Tensor, labels: Tensor, clients: list[Tensor], num_classes: int
) -> dict[str, Tensor]:
    """Prototypes that the server starts with (PEP-FedPT, Eq. 18-19).

    Args:
        inputs: unprompted class tokens at every block's input [N, M, d].
        labels: [N].
        clients: rows of the training images of each client of S_0.

    Returns:
        `mean` [M, C, d] over the clients of their class means, a class that a client does not
        hold counting as zeros; `spread` [M, C], the largest L1 distance of a token to its client's
        mean of the class; `count` [C], images of the class over S_0.
    """
    blocks, width = inputs.shape[1:]
    total = torch.zeros(blocks, num_classes, width)
    spread = torch.zeros(blocks, num_classes)
    count = torch.zeros(num_classes, dtype=torch.int64)
    for rows in clients:
        one_hot = F.one_hot(labels[rows], num_classes)  # [n, C]
        tokens = inputs[rows]
        means = torch.einsum("nc,nmd->mcd", one_hot.float(), tokens)
        means /= one_hot.sum(0).clamp(min=1)[None, :, None]
        distance = (tokens - means[:, labels[rows]].transpose(0, 1)).abs().sum(-1)  # [n, M]
        spread = torch.maximum(spread, (distance[:, :, None] * one_hot[:, None]).amax(0))
        total += means
        count += one_hot.sum(0)
    return {"mean": total / len(clients), "spread": spread, "count": count}
