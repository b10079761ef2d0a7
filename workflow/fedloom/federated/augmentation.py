"""Random crops and flips of the training images.

There are two kinds of augmentation:

1. `true`: torchvision's RandomResizedCrop (8 to 100% of the area, bicubic) and
   RandomHorizontalFlip, as in CLIP's few-shot training (CoOp: Zhou et al., "Learning to Prompt for
   Vision-Language Models", IJCV 2022).
2. `shift`: RandomCrop with a border of an eighth of the side, and RandomHorizontalFlip, as CIFAR is
   usually trained on.

The backbone encodes the augmented images of every training step anew. All other passes use the
images without augmentation.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from fedloom.common.seeds import stream_seed
from fedloom.data.batch import Batch
from fedloom.federated.task import Task
from fedloom.machine.transfers import pinned


def training_batch(
    task: Task, clients: Sequence[int], batch: Batch, phase: int, step: int
) -> Batch:
    """Return the batch [K, B] of a step, augmented if the training options say so.

    Args:
        clients: ids of the K clients.
        phase: number of the training phase within the round.
        step: number of the step within the phase.
    """
    if not task.training.augment:
        return batch
    streams = [
        stream_seed(task.seed, "augmentation", task.round, client, phase, step)
        for client in clients
    ]
    return replace(batch, loader=AugmentedImages(task, streams))


class AugmentedImages:
    """Load the images of one batch with random crops and flips, from a seed per client.

    Class tokens and patches are computed by the frozen backbone from these augmented images.
    """

    def __init__(self, task: Task, streams: list[int]):
        """Take the task and one seed for each of the batch's K clients."""
        self._task = task
        self._streams = streams
        # by cache and name: the tensors [K, B, ...] computed so far from the augmented images
        self._encoded: dict[str, dict[str, Tensor]] = {}

    def is_read_ahead(self, batch: Batch) -> bool:
        """Return True on a GPU, which would otherwise wait while the CPU augments images."""
        return batch.source.device.type == "cuda"

    def images(self, batch: Batch) -> Tensor:
        """Return the augmented images [K, B, H, W, channels] on the device.

        Their size is that of the backbone's input.
        """
        return self.read(batch).to(batch.source.device, non_blocking=True)

    def read(self, batch: Batch) -> Tensor:
        """Read and augment the images on the CPU; return them [K, B, H, W, channels]."""
        transform = self._transform()
        images_of_clients = []
        for seed, rows in zip(self._streams, _real_rows(batch), strict=True):
            images = torch.from_numpy(batch.source.store.images(rows)).movedim(-1, 1)
            # torchvision draws from torch's global CPU generator, which nothing else in a run uses
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                drawn = [transform(image) for image in images]
            images_of_clients.append(torch.stack(drawn).movedim(1, -1))
        return pinned(_padded(batch, images_of_clients), batch.source.device)

    def class_tokens(self, batch: Batch, block: int | None) -> Tensor:
        """Return the class tokens [K, B, d] of the augmented images.

        They are those at the input of `block` (from 1), or the final ones for None.
        """
        if batch.whole is not None:
            return batch.whole.class_tokens(block)[:, batch.columns]
        tokens = self._encode(batch, "features")
        if block is None:
            return tokens["final"]
        return tokens["inputs"][:, :, block - 1]

    def patches(self, batch: Batch) -> Tensor:
        """Return the patch tokens [K, B, T, d] of the augmented images."""
        if batch.whole is not None:
            return batch.whole.patches[:, batch.columns]
        return self._encode(batch, "patches")["patches"].float()

    def _transform(self) -> v2.Compose:
        """Return the random transformation of an image that the training options name."""
        size = self._task.backbone.pixels.size
        bicubic = InterpolationMode.BICUBIC
        if self._task.training.augment == "shift":
            crop = [v2.Resize(size, bicubic), v2.RandomCrop(size, padding=size[0] // 8)]
        else:
            crop = [v2.RandomResizedCrop(size, interpolation=bicubic)]
        return v2.Compose([*crop, v2.RandomHorizontalFlip()])

    def _encode(self, batch: Batch, cache: str) -> dict[str, Tensor]:
        """Return the tensors [K, B, ...] of a cache, by name, for the augmented images.

        They are computed once and then kept.
        """
        if cache not in self._encoded:
            # encode client by client, so that the bits do not depend on the other clients
            client_tensors = [
                self._task.backbone.compute_cache(batch.images[k, : len(rows)], cache)
                for k, rows in enumerate(_real_rows(batch))
            ]

            # then stack the clients' tensors, as the losses need them
            encoded: dict[str, Tensor] = {}
            for name in client_tensors[0]:
                encoded[name] = _padded(batch, [tensors[name] for tensors in client_tensors])
            self._encoded[cache] = encoded
        return self._encoded[cache]


def _real_rows(batch: Batch) -> list[np.ndarray]:
    """Return the rows of each client's images, without those that only fill up the batch."""
    return [row[:count] for row, count in zip(batch.index, batch.counts, strict=True)]


def _padded(batch: Batch, tensors: list[Tensor]) -> Tensor:
    """Stack the clients' tensors [B_k, ...] to [K, B, ...].

    Each client's first image fills up its tensor to B images.
    """
    width = batch.index.shape[1]
    filled: list[Tensor] = []
    for x in tensors:
        filling = x[:1].expand(width - len(x), *x.shape[1:])
        filled.append(torch.cat([x, filling]))
    return torch.stack(filled)
