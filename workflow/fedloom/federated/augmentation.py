"""Training images cropped and flipped at random, as CLIP's few-shot training has them (CoOp).

Zhou et al., "Learning to Prompt for Vision-Language Models", IJCV 2022: torchvision's
RandomResizedCrop (8 to 100% of the area, bicubic) and RandomHorizontalFlip. Or shifted and flipped,
as CIFAR is trained on: RandomCrop with a border of an eighth of the side. The images of every
training step are encoded anew; all other passes read them as they are.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from fedloom.common.seeds import stream_seed
from fedloom.data.federation import Batch, pinned
from fedloom.federated.task import Task


def training_batch(
    task: Task, clients: Sequence[int], batch: Batch, phase: int, step: int
) -> Batch:
    """Return the batch [K, B] of K clients in a step, augmented if the training options say so."""
    if not task.training.augment:
        return batch
    streams = [
        stream_seed(task.seed, "augmentation", task.round, client, phase, step)
        for client in clients
    ]
    return replace(batch, loader=AugmentedImages(task, streams))


class AugmentedImages:
    """Loads the images of one batch cropped and flipped at random, by a seed per client.

    Class tokens and patches are those that the frozen backbone computes of these images.
    """

    def __init__(self, task: Task, streams: list[int]):
        """Take the task and a seed for each of the batch's K clients."""
        self._task = task
        self._streams = streams
        # what was computed of the drawn images: tensors [K, B, ...] by name, by their cache
        self._encoded: dict[str, dict[str, Tensor]] = {}

    def is_read_ahead(self, batch: Batch) -> bool:
        """Return True on every GPU, which would wait for the CPU's draws otherwise."""
        return batch.source.device.type == "cuda"

    def images(self, batch: Batch) -> Tensor:
        """Return the images [K, B, H, W, channels] of the backbone's size, on the device."""
        return self.read(batch).to(batch.source.device, non_blocking=True)

    def read(self, batch: Batch) -> Tensor:
        """Read and draw the images, on the CPU."""
        transform = self._transform()
        images_of_clients = []
        for seed, rows in zip(self._streams, _real_rows(batch), strict=True):
            images = torch.from_numpy(batch.source.store.images(rows)).movedim(-1, 1)
            # torchvision draws from the CPU's global stream, which nothing else in a run uses
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                drawn = [transform(image) for image in images]
            images_of_clients.append(torch.stack(drawn).movedim(1, -1))
        return pinned(_padded(batch, images_of_clients), batch.source.device)

    def class_tokens(self, batch: Batch, block: int | None) -> Tensor:
        """Return the class tokens [K, B, d] of the drawn images."""
        if batch.whole is not None:
            return batch.whole.class_tokens(block)[:, batch.columns]
        tokens = self._encode(batch, "features")
        if block is None:
            return tokens["final"]
        return tokens["inputs"][:, :, block - 1]

    def patches(self, batch: Batch) -> Tensor:
        """Return the patch tokens [K, B, T, d] of the drawn images."""
        if batch.whole is not None:
            return batch.whole.patches[:, batch.columns]
        return self._encode(batch, "patches")["patches"].float()

    def _transform(self) -> v2.Compose:
        """Return the random change of an image that the training options name."""
        size = self._task.backbone.pixels.size
        bicubic = InterpolationMode.BICUBIC
        if self._task.training.augment == "shift":
            crop = [v2.Resize(size, bicubic), v2.RandomCrop(size, padding=size[0] // 8)]
        else:
            crop = [v2.RandomResizedCrop(size, interpolation=bicubic)]
        return v2.Compose([*crop, v2.RandomHorizontalFlip()])

    def _encode(self, batch: Batch, cache: str) -> dict[str, Tensor]:
        """Compute once the tensors [K, B, ...] that the cache would hold of the images, by name."""
        if cache not in self._encoded:
            # client by client, so that stacking changes not one bit
            of_clients = [
                self._task.backbone.compute_cache(batch.images[k, : len(rows)], cache)
                for k, rows in enumerate(_real_rows(batch))
            ]

            # then stacked, as the losses read them
            encoded: dict[str, Tensor] = {}
            for name in of_clients[0]:
                encoded[name] = _padded(batch, [tensors[name] for tensors in of_clients])
            self._encoded[cache] = encoded
        return self._encoded[cache]


def _real_rows(batch: Batch) -> list[np.ndarray]:
    """Return the rows of each client without those that fill up the batch."""
    return [row[:count] for row, count in zip(batch.index, batch.counts, strict=True)]


def _padded(batch: Batch, tensors: list[Tensor]) -> Tensor:
    """Stack the clients' [B_k, ...] to [K, B, ...], filled up with each client's first."""
    width = batch.index.shape[1]
    filled: list[Tensor] = []
    for x in tensors:
        filling = x[:1].expand(width - len(x), *x.shape[1:])
        filled.append(torch.cat([x, filling]))
    return torch.stack(filled)
