"""A torch module that answers new images as a run's evaluation answers its test images."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.common.errors import FedLoomError
from fedloom.common.trees import Tree
from fedloom.data.federation import Federation
from fedloom.data.store import ImageStore
from fedloom.federated import groups
from fedloom.federated.evaluate import answer
from fedloom.federated.task import Cohort, Task
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.device import AUTOCAST
from fedloom.machine.memory import CACHED_AT_ONCE


class Classifier(nn.Module):
    """The model of a run's server, or of one of its clients.

    It is for predictions alone, so `train()` changes nothing. The device and the precision are
    those with which it was loaded.

    Attributes:
        task: the run's task in the round of the model.
        hooks: the hooks of the run.
        received: what the server or the client received, [1, ...].
        clients: the cohort that is the server's model, or the one client.
        shape: height, width and channels of the pixels that it takes.
        cache_precision: the number format in which the study caches what the backbone computes.
    """

    def __init__(
        self,
        task: Task[Any],
        hooks: Hooks,
        received: Tree,
        clients: Cohort,
        shape: tuple[int, int, int],
        cache_precision: str = "float32",
    ):
        """Take what an evaluation asks the method with."""
        super().__init__()
        self.task = task
        self.hooks = hooks
        self.received = received
        self.clients = clients
        self.shape = shape
        self.cache_precision = cache_precision
        # registered, so that `parameters()` are those of the backbone
        self.backbone = task.backbone.model

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits [N, C] for the pixels of images, uint8 [N, channels, H, W].

        Raises:
            FedLoomError: the pixels have another type or shape, or the server has no model.
        """
        high, wide, channels = self.shape
        wanted = (channels, high, wide)
        if pixels.dtype != torch.uint8 or pixels.dim() != 4 or pixels.shape[1:] != wanted:
            raise FedLoomError(
                f"pixels must be uint8 [images, {channels}, {high}, {wide}], got "
                f"{str(pixels.dtype).removeprefix('torch.')} {[*pixels.shape]}; make them with the "
                "model's transform"
            )

        count = len(pixels)
        classes = self.task.num_classes
        if not count:
            return torch.zeros(0, classes, device=self.task.data.device)
        with torch.inference_mode():
            data = self._data_of(pixels.movedim(1, -1))
            every = [np.arange(count)]

            # ask batch by batch, of the same size as in an evaluation
            parts: list[Tensor] = []
            for batch in groups.iterate_examples(replace(self.task, data=data), every):
                logits = answer(self.task, self.hooks, self.received, self.clients, batch)
                if logits is None:
                    raise FedLoomError(
                        f"{self.task.method}: the server has no model of its own; name the client "
                        "whose model is meant (client)"
                    )
                parts.append(logits[0])
            return torch.cat(parts)

    def check(self) -> None:
        """Answer a black image, so that a model that can answer none is refused at once.

        Raises:
            FedLoomError: the server has no model, the backbone refuses the size of the images, or
                a class has a name that is too long for its text tower.
        """
        high, wide, channels = self.shape
        self(torch.zeros(1, channels, high, wide, dtype=torch.uint8))

    def train(self, mode: bool = True) -> Self:
        """Stay in the mode of evaluation: the backbone is frozen, and nothing here is trained."""
        return self

    def _apply(self, fn: Callable, recurse: bool = True) -> Self:
        """Refuse to move: a method's tensors and hooks belong to the device of the task.

        Raises:
            FedLoomError: always. `to`, `cuda`, `half` and others of torch's functions end here.
        """
        raise FedLoomError(
            "a loaded model stays on its device and in its precision; load it anew with the "
            "arguments device and precision of fedloom.load"
        )

    def _data_of(self, images: Tensor) -> Federation:
        """Return new images, uint8 [N, H, W, channels], as data from which batches are taken.

        Features and patches are computed when the method reads them, as a study's caches are.
        """
        device = self.task.data.device

        # a view of the backbone that computes in the format of the caches
        view = copy(self.task.backbone)
        view.precision = self.cache_precision
        kept_as = AUTOCAST.get(self.cache_precision)

        @cache
        def cached(kind: str) -> dict[str, Tensor]:
            """Return the tensors [N, ...] of a cache, by name."""
            parts = images.split(CACHED_AT_ONCE)
            made = [view.compute_cache(part.to(device), kind) for part in parts]
            tensors: dict[str, Tensor] = {}
            for name in made[0]:
                joined = torch.cat([each[name] for each in made])
                tensors[name] = joined.to(kept_as or joined.dtype)
            return tensors

        def tokens(block: int | None) -> Tensor:
            """Return class tokens [N, d]: the input of a block, from 1, or the final ones."""
            if block is None:
                return cached("features")["final"]
            return cached("features")["inputs"][:, block - 1]

        return Federation(
            store=ImagesInMemory(images),
            train=[],
            test=[],
            participating=[],
            labels=torch.zeros(len(images), dtype=torch.int64, device=device),
            priors=torch.zeros(0, self.task.num_classes, device=device),
            domains=[],
            tokens=tokens,
            patches=lambda: cached("patches")["patches"],
            device=device,
        )


class ImagesInMemory(ImageStore):
    """Images that are read from memory and not from a file."""

    def __init__(self, images: Tensor):
        """Take the images, uint8 [N, H, W, channels]."""
        self._pixels = images.cpu().numpy()
        self.shape = self._pixels.shape[1:]

    def __len__(self) -> int:
        return len(self._pixels)

    def images(self, index: np.ndarray) -> np.ndarray:
        """Return the images at the rows `index` [...], as uint8 [..., H, W, channels]."""
        return self._pixels[index]
