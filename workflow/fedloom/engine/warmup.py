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


def warm_start(inputs: Tensor, labels: Tensor, clients: list[Tensor], num_classes: int) -> Tensor:
    """Prototypes [M, C, d] that the server starts with (PEP-FedPT, Eq. 18-19).

    The mean over the clients S_0 of their class means, a class that a client does not hold
    counting as zeros.

    Args:
        inputs: unprompted class tokens at every block's input [N, M, d].
        labels: [N].
        clients: rows of the training images of each client of S_0.
    """
    total = torch.zeros(inputs.shape[1], num_classes, inputs.shape[2])
    for rows in clients:
        one_hot = F.one_hot(labels[rows], num_classes).float()  # [n, C]
        sums = torch.einsum("nc,nmd->mcd", one_hot, inputs[rows])
        total += sums / one_hot.sum(0).clamp(min=1)[None, :, None]
    return total / len(clients)
