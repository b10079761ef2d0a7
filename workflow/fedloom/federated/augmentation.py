"""Training images cropped and flipped at random, as CLIP's few-shot training has them (CoOp).

Zhou et al., "Learning to Prompt for Vision-Language Models", IJCV 2022: torchvision's
RandomResizedCrop (8 to 100% of the area, bicubic) and RandomHorizontalFlip. Or shifted and flipped,
as CIFAR is trained on: RandomCrop with a border of an eighth of the side. The images of every
training step are encoded anew; all other passes read them as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from fedloom.common.seeds import stream_seed
from fedloom.data.federation import Batch, BatchPart, to_device
from fedloom.federated.task import Task

BICUBIC = InterpolationMode.BICUBIC


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
    return AugmentedBatch(**vars(batch), task=task, streams=streams)


@dataclass
class AugmentedBatch(Batch):
    """A batch whose images are cropped and flipped at random, by a seed per client (`streams`)."""

    task: Task
    streams: list[int]

    @cached_property
    def images(self) -> Tensor:
        """Return the augmented images, uint8 [K, B, H, W, channels] of the backbone's size."""
        size = self.task.backbone.pixels.size
        crop: list[v2.Transform] = [v2.RandomResizedCrop(size, interpolation=BICUBIC)]
        if self.task.training.augment == "shift":
            crop = [v2.Resize(size, BICUBIC), v2.RandomCrop(size, padding=size[0] // 8)]
        transform = v2.Compose([*crop, v2.RandomHorizontalFlip()])
        of_clients = []
        for seed, rows in zip(self.streams, self._real(), strict=True):
            images = torch.from_numpy(self.source.store.images(rows)).movedim(-1, 1)
            with torch.random.fork_rng(devices=[]):  # torchvision knows the global stream only
                torch.manual_seed(seed)
                drawn = torch.stack([transform(image) for image in images])
            of_clients.append(drawn.movedim(1, -1))
        return to_device(self._padded(of_clients).numpy(), self.source.device)

    def class_tokens(self, block: int | None) -> Tensor:
        """Return `Batch.class_tokens` [K, B, d] of the augmented images."""
        tokens = self._tokens
        return tokens["final"] if block is None else tokens["inputs"][:, :, block - 1]

    @cached_property
    def patches(self) -> Tensor:
        """Return `Batch.patches` [K, B, T, d] of the augmented images."""
        return self._encoded("patches")["patches"].float()

    def part(self, columns: slice) -> Batch:
        """Return the images of these columns as a batch of their own (see `Batch.part`)."""
        return AugmentedPart(**self._columns(columns), whole=self, columns=columns)

    @cached_property
    def _tokens(self) -> dict[str, Tensor]:
        return self._encoded("features")

    def _encoded(self, cache: str) -> dict[str, Tensor]:
        """Compute the tensors [K, B, ...] that the cache would hold of the images, by name."""
        # client by client, so that stacking changes not one bit
        encoded = [
            self.task.backbone.compute_cache(self.images[k, : len(rows)], cache)
            for k, rows in enumerate(self._real())
        ]
        return {name: self._padded([tensors[name] for tensors in encoded]) for name in encoded[0]}

    def _real(self) -> list[np.ndarray]:
        """Return the rows of each client without those that fill up the batch."""
        return [row[:count] for row, count in zip(self.index, self.counts, strict=True)]

    def _padded(self, tensors: list[Tensor]) -> Tensor:
        """Stack the clients' [B_k, ...] to [K, B, ...], filled up with each client's first."""
        width = self.index.shape[1]
        return torch.stack(
            [torch.cat([x, x[:1].expand(width - len(x), *x.shape[1:])]) for x in tensors]
        )


@dataclass
class AugmentedPart(BatchPart):
    """Some columns of an augmented batch, which the frozen backbone encodes as a whole."""

    def class_tokens(self, block: int | None) -> Tensor:
        """Return `Batch.class_tokens` [K, B, d] of the augmented images."""
        return self.whole.class_tokens(block)[:, self.columns]

    @cached_property
    def patches(self) -> Tensor:
        """Return `Batch.patches` [K, B, T, d] of the augmented images."""
        return self.whole.patches[:, self.columns]
