"""What is computed once per dataset and backbone, before any round."""

from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.backbones.vit import FrozenViT
from fedloom.data.store import ImageStore
from fedloom.files import replacing
from fedloom.progress import progress

IMAGES_AT_ONCE = 128


def write_features(vit: FrozenViT, store: ImageStore, path: Path, device: torch.device) -> None:
    """Class tokens of every image: `inputs` [N, M, d] at every block's input, `final` [N, d]."""
    inputs = torch.empty(len(store), vit.depth, vit.width)
    final = torch.empty(len(store), vit.width)
    with progress(len(store), f"features of {len(store)} images") as bar:
        for rows in np.array_split(np.arange(len(store)), -(-len(store) // IMAGES_AT_ONCE)):
            images = torch.from_numpy(store.images(rows).copy()).to(device)
            tokens = vit.class_tokens(images).cpu()
            inputs[rows], final[rows] = tokens[:, :-1], tokens[:, -1]
            bar.update(len(rows))
    with replacing(path) as temporary:
        safetensors.torch.save_file({"inputs": inputs, "final": final}, temporary)


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
