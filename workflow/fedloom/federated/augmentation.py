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
from fedloom.data.federation import Batch, BatchPart, pinned
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
    return AugmentedBatch(**vars(batch), task=task, streams=streams)


@dataclass
class AugmentedBatch(Batch):
    """A batch whose images are cropped and flipped at random, by a seed per client (`streams`)."""

    task: Task
    streams: list[int]

    @property
    def is_read_ahead(self) -> bool:  # a GPU would wait for the CPU's draws
        return self.source.device.type == "cuda"

    @cached_property
    def images(self) -> Tensor:  # uint8 [K, B, H, W, channels] of the backbone's size
        return self.read().to(self.source.device, non_blocking=True)

    def read(self) -> Tensor:
        """Read and draw the images, on the CPU."""
        size, bicubic = self.task.backbone.pixels.size, InterpolationMode.BICUBIC
        crop = [v2.RandomResizedCrop(size, interpolation=bicubic)]
        if self.task.training.augment == "shift":
            crop = [v2.Resize(size, bicubic), v2.RandomCrop(size, padding=size[0] // 8)]
        transform = v2.Compose([*crop, v2.RandomHorizontalFlip()])
        of_clients = []
        for seed, rows in zip(self.streams, self._real(), strict=True):
            images = torch.from_numpy(self.source.store.images(rows)).movedim(-1, 1)
            # torchvision draws from the CPU's global stream, which nothing else in a run uses
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                new = [transform(image) for image in images]
            of_clients.append(torch.stack(new).movedim(1, -1))
        return pinned(self._padded(of_clients), self.source.device)

    def class_tokens(self, block: int | None) -> Tensor:
        tokens = self._features
        return tokens["final"] if block is None else tokens["inputs"][:, :, block - 1]

    @cached_property
    def patches(self) -> Tensor:
        return self._encoded("patches")["patches"].float()

    @cached_property
    def _features(self) -> dict[str, Tensor]:
        return self._encoded("features")

    def part(self, columns: slice) -> Batch:
        return AugmentedPart.of(self, columns)

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
        return self.whole.class_tokens(block)[:, self.columns]

    @cached_property
    def patches(self) -> Tensor:
        return self.whole.patches[:, self.columns]
