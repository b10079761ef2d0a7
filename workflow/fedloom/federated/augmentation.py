"""Training images cropped and flipped at random, as CLIP's few-shot training has them (CoOp).

Zhou et al., "Learning to Prompt for Vision-Language Models", IJCV 2022: torchvision's
RandomResizedCrop (8 to 100% of the area, bicubic) and RandomHorizontalFlip. Or shifted and flipped,
as CIFAR is trained on: RandomCrop with a border of an eighth of the side. The images of every
training step are encoded anew; all other passes read them as they are.

torchvision's own transforms draw from torch's global stream, which a second thread must not touch:
on a GPU, the images of a step are drawn while it trains on those before. The draws here are the
same, from a generator.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as T

from fedloom.common.seeds import stream_seed
from fedloom.data.federation import Batch, BatchPart, pinned
from fedloom.federated.task import Task

BICUBIC = InterpolationMode.BICUBIC
AREA, RATIO = (0.08, 1.0), torch.tensor((3 / 4, 4 / 3)).log().tolist()  # of a crop; the log of it


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


def cropped(image: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return what torchvision's RandomResizedCrop makes of an image [channels, H, W]."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(1).uniform_(low, high, generator=generator)

    height, width = image.shape[1:]
    for _ in range(10):
        area = height * width * uniform(*AREA).item()
        ratio = uniform(*RATIO).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (
                int(torch.randint(0, most + 1, (1,), generator=generator))
                for most in (height - h, width - w)
            )
            break
    else:  # the largest in the middle
        low, high = 3 / 4, 4 / 3
        w = min(width, round(height * high)) if width / height > high else width
        h = min(height, round(width / low)) if width / height < low else height
        top, left = (height - h) // 2, (width - w) // 2
    return T.resized_crop(image, top, left, h, w, list(size), BICUBIC, antialias=True)


def shifted(image: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return what torchvision's Resize and RandomCrop, with a border, make of an image."""
    border = size[0] // 8
    bordered = T.pad(T.resize(image, list(size), BICUBIC, antialias=True), [border] * 4)
    if not border:
        return bordered
    top, left = (int(torch.randint(0, 2 * border + 1, (), generator=generator)) for _ in size)
    return T.crop(bordered, top, left, *size)


def flipped(image: Tensor, generator: torch.Generator) -> Tensor:
    """Return what torchvision's RandomHorizontalFlip makes of an image."""
    return T.horizontal_flip(image) if torch.rand(1, generator=generator) < 0.5 else image


@dataclass
class AugmentedBatch(Batch):
    """A batch whose images are cropped and flipped at random, by a seed per client (`streams`)."""

    task: Task
    streams: list[int]

    @property
    def is_read_ahead(self) -> bool:
        """Return True on a GPU, which would wait for the CPU's draws."""
        return self.source.device.type == "cuda"

    @cached_property
    def images(self) -> Tensor:
        """Return the augmented images, uint8 [K, B, H, W, channels] of the backbone's size."""
        return self.read().to(self.source.device, non_blocking=True)

    def read(self) -> Tensor:
        """Read and draw the images, on the CPU."""
        size = self.task.backbone.pixels.size
        drawn = shifted if self.task.training.augment == "shift" else cropped
        of_clients = []
        for seed, rows in zip(self.streams, self._real(), strict=True):
            images = torch.from_numpy(self.source.store.images(rows)).movedim(-1, 1)
            generator = torch.Generator().manual_seed(seed)
            new = [flipped(drawn(image, size, generator), generator) for image in images]
            of_clients.append(torch.stack(new).movedim(1, -1))
        return pinned(self._padded(of_clients), self.source.device)

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
