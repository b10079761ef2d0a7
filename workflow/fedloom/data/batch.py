"""Hold the examples of several clients in one batch, and read its images and tokens."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.seeds import torch_generator
from fedloom.data.store import ImageStore
from fedloom.machine.transfers import pinned


class BatchSource(Protocol):
    """Has all images from which batches are taken: a Federation, whose docstring says more."""

    @property
    def store(self) -> ImageStore:
        """Return the images on disk."""
        ...

    @property
    def labels(self) -> torch.Tensor:
        """Return the class of every image, int64 [N]."""
        ...

    @property
    def device(self) -> torch.device:
        """Return the device of a batch's tensors."""
        ...

    @property
    def resident(self) -> torch.Tensor | None:
        """Return all images on a GPU, uint8 [N, H, W, channels], or None if they stay on disk."""
        ...

    @property
    def tokens(self) -> Callable[[int | None], torch.Tensor]:
        """Return the function that reads class tokens [N, d] from the cache."""
        ...

    @property
    def patches(self) -> Callable[[], torch.Tensor] | None:
        """Return the function that reads projected patch tokens [N, T, d] from the cache."""
        ...


def missing_cache_reader(cache: str) -> Callable[..., NoReturn]:
    """Return a function that raises a FedLoomError when it is called.

    It stands in for the reader of a cache that the method does not list under `needs`, and takes
    the same arguments.
    """

    def read(*block: int | None) -> NoReturn:
        raise FedLoomError(
            f"the method reads {cache}, which its method.toml does not ask for; "
            f'add "{cache}" to needs'
        )

    return read


class BatchLoader(Protocol):
    """Loads the images of a batch, and the tokens that the backbone computed from them.

    A batch asks its loader once for its images. A part of a batch has the loader of the whole.
    """

    def is_read_ahead(self, batch: "Batch") -> bool:
        """Return True if the images are read while the GPU works on another batch."""
        ...

    def read(self, batch: "Batch") -> torch.Tensor:
        """Read the images [K, B, H, W, channels] into the CPU's memory."""
        ...

    def images(self, batch: "Batch") -> torch.Tensor:
        """Return the images [K, B, H, W, channels] on the device."""
        ...

    def class_tokens(self, batch: "Batch", block: int | None) -> torch.Tensor:
        """Return class tokens [K, B, d]: the input of a block, from 1, or the final ones (None)."""
        ...

    def patches(self, batch: "Batch") -> torch.Tensor:
        """Return the projected patch tokens [K, B, T, d] of a CLIP."""
        ...


class StoredImages:
    """Loads the images of a batch unchanged from the image store, and tokens from the caches."""

    def is_read_ahead(self, batch: "Batch") -> bool:
        """Return True on a GPU that does not hold all images."""
        return batch.source.device.type == "cuda" and batch.source.resident is None

    def read(self, batch: "Batch") -> torch.Tensor:
        """Read the images from the store into the CPU's memory."""
        return pinned(torch.from_numpy(batch.source.store.images(batch.index)), batch.source.device)

    def images(self, batch: "Batch") -> torch.Tensor:
        """Return the images on the device; read them from the store unless the device holds all."""
        resident = batch.source.resident
        if resident is not None:
            return resident[batch.rows]
        return self.read(batch).to(batch.source.device, non_blocking=True)

    def class_tokens(self, batch: "Batch", block: int | None) -> torch.Tensor:
        """Return the class tokens [K, B, d] from the cache, in float32."""
        return batch.source.tokens(block)[batch.rows].float()

    def patches(self, batch: "Batch") -> torch.Tensor:
        """Return the patch tokens [K, B, T, d] from the cache, in float32."""
        read_cache = batch.source.patches or missing_cache_reader("patches")
        stored = read_cache()
        device = batch.rows.device

        # the cache may be a file on disk, whose rows a GPU cannot read
        if stored.device != device:
            rows = pinned(stored[torch.from_numpy(batch.index)], device)
            return rows.to(device, non_blocking=True).float()
        return stored[batch.rows].float()


@dataclass
class Batch:
    """B examples of each of K clients.

    Attributes:
        source: the data from which the batch was taken, a Federation.
        index: rows of the image store, [K, B].
        counts: number of each client's examples without padding, [K].
        rows: the same as `index`, as a tensor on the device.
        mask: bool [K, B], False for padding.
        seen: while training, how many examples of this phase each client has had before, [K].
        loader: reads the images and their tokens.
        whole: the batch of which this is a part; None if this is a whole batch. The images of a
            whole batch are read, and randomly cropped, together.
        columns: the columns of `whole` that this part has.
        loaded: the images after they were read; use `images` instead.
    """

    source: BatchSource
    index: np.ndarray
    counts: tuple[int, ...]
    rows: torch.Tensor
    mask: torch.Tensor
    seen: tuple[int, ...] = ()
    loader: BatchLoader = field(default_factory=StoredImages, repr=False)
    whole: "Batch | None" = field(default=None, repr=False)
    columns: slice = field(default_factory=lambda: slice(None), repr=False)
    loaded: torch.Tensor | None = field(default=None, init=False, repr=False)

    @property
    def is_read_ahead(self) -> bool:
        """Return True if the images are read while the GPU works on another batch."""
        return self.loader.is_read_ahead(self)

    def read(self) -> torch.Tensor:
        """Read the images [K, B, H, W, channels] into the CPU's memory."""
        return self.loader.read(self)

    @property
    def has_images(self) -> bool:
        """Return True if the images have been read."""
        return self.loaded is not None

    def set_images(self, images: torch.Tensor) -> None:
        """Send the images that `read` returned to the device, and keep them."""
        self.loaded = images.to(self.source.device, non_blocking=True)

    @property
    def images(self) -> torch.Tensor:
        """Return the images, uint8 [K, B, H, W, channels]; the first call reads them."""
        if self.loaded is None:
            if self.whole is None:
                self.loaded = self.loader.images(self)
            else:
                self.loaded = self.whole.images[:, self.columns]
        return self.loaded

    @cached_property
    def labels(self) -> torch.Tensor:
        """Return the classes, int64 [K, B]."""
        return self.source.labels[self.rows]

    @cached_property
    def features(self) -> torch.Tensor:
        """Return the unprompted backbone's final class tokens [K, B, d], from the cache."""
        return self.class_tokens(None)

    def class_tokens(self, block: int | None) -> torch.Tensor:
        """Return class tokens [K, B, d]: the input of a block, from 1, or the final ones (None)."""
        return self.loader.class_tokens(self, block)

    @cached_property
    def patches(self) -> torch.Tensor:
        """Return the projected patch tokens [K, B, T, d] of a CLIP, from the cache."""
        return self.loader.patches(self)

    def parts(self, size: int | None) -> Iterator["Batch"]:
        """Yield parts of the batch with at most `size` images per client; None: the whole batch.

        The mask is False for all images of a client that has none left in a part.
        """
        width = self.index.shape[1]
        if size is None or size >= width:
            yield self
            return
        for start in range(0, width, size):
            yield self.part(slice(start, start + size))

    def part(self, columns: slice) -> "Batch":
        """Return the images of these columns as a batch."""
        # number of each client's examples before the part, and before its end, [K]
        before = [min(count, columns.start) for count in self.counts]
        until = [min(count, columns.stop) for count in self.counts]

        return Batch(
            source=self.source,
            index=self.index[:, columns],
            counts=tuple(stop - start for start, stop in zip(before, until, strict=True)),
            rows=self.rows[:, columns],
            mask=self.mask[:, columns],
            seen=tuple(number + start for number, start in zip(self.seen, before, strict=True)),
            loader=self.loader,
            whole=self,
            columns=columns,
        )


def read_ahead(batches: Iterator["Batch"]) -> Iterator["Batch"]:
    """Yield the batches.

    While the GPU works on one batch, a thread reads the images of the next one. It does so only
    after the caller has used the images of a batch.
    """
    # whether the caller used the images of the previous batch
    images_are_used = False
    # the images of the following batch, which the thread is reading
    coming: Future[torch.Tensor] | None = None
    following = next(batches, None)
    with ThreadPoolExecutor(1) as reader:
        while following is not None:
            batch = following
            following = next(batches, None)

            # give this batch its images, and start to read those of the following batch
            if images_are_used:
                current = coming or reader.submit(batch.read)
                coming = reader.submit(following.read) if following else None
                batch.set_images(current.result())

            yield batch
            images_are_used = batch.has_images and batch.is_read_ahead


def shuffled_batches(
    rows: np.ndarray, size: int, epochs: int, seed: int, *stream: int, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """Yield one client's minibatches of `size` rows, in a new random order for every epoch.

    `seed`, `stream` and the epoch determine the order. `drop_last` leaves out a last minibatch that
    is smaller, unless it is the only one.
    """
    used = len(rows)
    if drop_last and len(rows) >= size:
        used -= len(rows) % size

    for epoch in range(epochs):
        generator = torch_generator(seed, "batches", *stream, epoch)
        order = torch.randperm(len(rows), generator=generator).numpy()
        for start in range(0, used, size):
            yield rows[order[start : start + size]]
