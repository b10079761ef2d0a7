"""Give methods a partitioned dataset: clients, their images, batches with a client axis."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.ids import NOVEL_CLASSES, UNASSIGNED, client_domain
from fedloom.common.run_tables import PARTITION_SCHEMA
from fedloom.common.seeds import torch_generator
from fedloom.data.store import ImageStore
from fedloom.machine import memory

# images that are copied to a GPU at once
COPIED_AT_ONCE = 1024


def missing_cache_reader(cache: str) -> Callable[..., NoReturn]:
    """Return a reader that raises an error, for a cache that is not among a method's `needs`.

    It takes the arguments of the reader whose place it holds.
    """

    def read(*block: int | None) -> NoReturn:
        raise FedLoomError(
            f"the method reads {cache}, which its method.toml does not ask for; "
            f'add "{cache}" to needs'
        )

    return read


@dataclass(frozen=True)
class Arrived:
    """The stream parts seen so far. Without `arrivals`, there is a single part.

    Attributes:
        part: number of the newest part, from 0.
        parts: number of parts that there will be at the end.
        training: bool [C], the classes that clients train on now.
        seen: bool [C], the classes that clients have trained on so far, or do now.
    """

    part: int
    parts: int
    training: torch.Tensor
    seen: torch.Tensor


@dataclass(eq=False)
class Federation:
    """All clients' data.

    Attributes:
        store: the images of all clients, uint8, on disk.
        train, test: rows of the image store, per client id.
        participating: ids of the clients that may be sampled; the others are held out.
        labels: class of every image, int64 [N]; -1 if no client trains on it.
        priors: [clients, C], each client's share of every class in its training images
            (PEP-FedPT, Eq. 14); of a stream, in all that have arrived (see `class_priors`).
        tokens: returns the class tokens [N, d] of the unprompted backbone at the input of a block
            (from 1), or the final ones for None, from the cache; of a CLIP, image features.
        patches: returns a CLIP's projected patch tokens [N, T, d], from the cache; None if the
            method does not need them. Both are in its format, and a batch's are float32.
        domains: name of every client's domain, by its training images (see `client_domain`).
        classes: names of the C classes that clients train on.
        numbers: the number of each class in the dataset [C]; None: they are the labels.
        unseen: other test images, by a name; every client is tested on all of them, among classes
            that it never trained on.
        device: of a batch's tensors.
        rounds: of a partition with `arrivals`, the first round [N] in which each image is there,
            and the first in which clients no longer train on it [N].
        arrived: the parts of the stream that have arrived; set in the data of a round (see
            `for_round`).
        earlier: rows of the training images that have arrived and left again, per client, in the
            data of a round; None if there are none.
        whole: the data of all rounds, if this is the data of a round.
    """

    store: ImageStore
    train: list[np.ndarray]
    test: list[np.ndarray]
    participating: list[int]
    labels: torch.Tensor
    priors: torch.Tensor
    domains: list[str]
    tokens: Callable[[int | None], torch.Tensor] = field(default=missing_cache_reader("features"))
    patches: Callable[[], torch.Tensor] | None = None
    classes: tuple[str, ...] = ()
    numbers: np.ndarray | None = None
    unseen: "dict[str, Federation]" = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rounds: tuple[np.ndarray, np.ndarray] | None = None
    arrived: Arrived | None = None
    earlier: list[np.ndarray] | None = None
    whole: "Federation | None" = None

    def for_round(self, number: int) -> "Federation":
        """Return the data of round `number`; round 0 has the data of round 1.

        Images that have not arrived are neither in `train` nor in `test`. Images that have left
        are not in `train`.
        """
        if self.rounds is None:
            return self
        starts = np.unique(self.rounds[0])
        part = int(np.searchsorted(starts, max(number, 1), "right")) - 1
        return _data_of_part(self.whole or self, part, tuple(starts))

    @property
    def train_so_far(self) -> list[np.ndarray]:
        """Return the rows of each client's training images that have arrived, left or not."""
        if self.earlier is None:
            return self.train
        return [np.union1d(left, now) for left, now in zip(self.earlier, self.train, strict=True)]

    def parts_of(self, client: int) -> list[np.ndarray]:
        """Return the client's rows in `train_so_far`, those that arrived together as one array.

        Without a stream it is one array.
        """
        rows = self.train_so_far[client]
        if self.rounds is None:
            return [rows]
        arrives = self.rounds[0][rows]
        return [rows[arrives == start] for start in np.unique(arrives)]

    @property
    def tested(self) -> list[int]:
        """Return the ids of the clients that have test images: all, if none is yet to arrive."""
        return [client for client, rows in enumerate(self.test) if len(rows)]

    @property
    def num_clients(self) -> int:
        """Return the number of clients, held out or not; ids count from 0."""
        return len(self.train)

    @cached_property
    def position(self) -> dict[int, int]:
        """Return the position of every participating client's id in `participating`."""
        return {client: position for position, client in enumerate(self.participating)}

    @property
    def num_classes(self) -> int:
        """Return C."""
        return self.priors.shape[1]

    @property
    def resident(self) -> torch.Tensor | None:
        """Return all images on a GPU, uint8 [N, H, W, channels], or None if they stay on disk."""
        # A wrapper's changed images stay on disk: a copy for every round would push this one out.
        if type(self.store) is not ImageStore:
            return None
        return _copy_to_gpu(self.store, self.device)

    def batch(self, rows: list[np.ndarray], fill: list[int] | None = None) -> "Batch":
        """Return rows of K clients as one batch [K, B], B the longest; shorter ones are masked.

        `fill` is the row of each client that stands where the mask is false; default: its first.
        """
        return next(self.batches([rows], fill))

    def batches(
        self, steps: Sequence[list[np.ndarray]], fill: list[int] | None = None
    ) -> Iterator["Batch"]:
        """Yield the `batch` of each step's rows; rows and masks of all go to the device at once."""
        if not steps:
            return

        # index and mask of each step, [K, B]
        indices: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        for rows in steps:
            index, mask = _padded(rows, fill)
            indices.append(index)
            masks.append(mask)

        # one transfer for all rows, and one for all masks
        rows_on_device = _split_on_device(indices, self.device)
        masks_on_device = _split_on_device(masks, self.device)

        for step, rows in enumerate(steps):
            yield Batch(
                source=self,
                index=indices[step],
                counts=tuple(map(len, rows)),
                rows=rows_on_device[step],
                mask=masks_on_device[step],
            )


def _split_on_device(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays to the device with a single transfer; return them as tensors, one for each."""
    together = to_device(np.concatenate([array.ravel() for array in arrays]), device)
    parts = together.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def class_priors(labels: np.ndarray, rows: Sequence[np.ndarray], classes: int) -> torch.Tensor:
    """Return the share of every class in each client's images, float32 [clients, C].

    The shares of a client without images are equal.

    Args:
        labels: class of every image of the store [N].
        rows: rows of the training images that have arrived, per client.
        classes: C.
    """
    counts = np.stack([np.bincount(labels[own], minlength=classes) for own in rows])
    # a client without images has equal shares
    counts[counts.sum(1) == 0] = 1
    return torch.from_numpy(counts / counts.sum(1, keepdims=True)).float()


@lru_cache(maxsize=4)
def _data_of_part(whole: Federation, part: int, starts: tuple[int, ...]) -> Federation:
    """Return the data while the newest part is `part`, of those that arrive at rounds `starts`."""
    assert whole.rounds is not None

    # the training images that have arrived, those that are still there, and those that have left
    arrives, leaves = whole.rounds
    has_arrived = arrives <= starts[part]  # bool [N]
    stays = leaves > starts[part]  # bool [N]
    train_so_far = [rows[has_arrived[rows]] for rows in whole.train]
    train_now = [rows[stays[rows]] for rows in train_so_far]
    earlier = [rows[~stays[rows]] for rows in train_so_far]

    # the classes that participating clients have trained on, and train on now
    labels = whole.labels.cpu().numpy()
    seen = np.zeros(whole.num_classes, bool)
    training = np.zeros(whole.num_classes, bool)
    for client in whole.participating:
        seen[labels[train_so_far[client]]] = True
        training[labels[train_now[client]]] = True

    return replace(
        whole,
        train=train_now,
        test=[rows[has_arrived[rows]] for rows in whole.test],
        priors=class_priors(labels, train_so_far, whole.num_classes).to(whole.device),
        arrived=Arrived(
            part=part,
            parts=len(starts),
            training=torch.from_numpy(training).to(whole.device),
            seen=torch.from_numpy(seen).to(whole.device),
        ),
        earlier=earlier if any(map(len, earlier)) else None,
        whole=whole,
    )


# one copy for all Federations: those with other clients have the same images
@lru_cache(maxsize=1)
def _copy_to_gpu(store: ImageStore, device: torch.device) -> torch.Tensor | None:
    """Copy all images to a GPU once; return None if they do not fit. See `Federation.resident`."""
    if not fits_on_gpu(store.nbytes, device):
        return None
    images = torch.empty((len(store), *store.shape), dtype=torch.uint8, device=device)
    for start in range(0, len(store), COPIED_AT_ONCE):
        rows = np.arange(start, min(start + COPIED_AT_ONCE, len(store)))
        images[start : start + len(rows)] = torch.from_numpy(store.images(rows))
    return images


def fits_on_gpu(size: int, device: torch.device) -> bool:
    """Return True if a number of bytes may be kept on a GPU; a CPU keeps none and reads files."""
    return device.type == "cuda" and memory.stays_on_gpu(size, gpu_bytes(device))


def gpu_bytes(device: torch.device) -> int:
    """Return the memory of a GPU."""
    return torch.cuda.get_device_properties(device).total_memory


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy values to the device, without waiting for the work that it has queued."""
    return pinned(torch.from_numpy(values), device).to(device, non_blocking=True)


def pinned(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values on the CPU, in memory that a GPU can read while both work."""
    if device.type == "cuda":
        return values.pin_memory()
    return values


def read_ahead(batches: Iterator["Batch"]) -> Iterator["Batch"]:
    """Yield the batches.

    As soon as the images of one batch are in use, the CPU reads those of the next one while the
    GPU works.
    """
    # whether somebody asked for the images of the batch before
    images_are_used = False
    # the images of the following batch, being read
    coming: Future[torch.Tensor] | None = None
    following = next(batches, None)
    with ThreadPoolExecutor(1) as reader:
        while following is not None:
            batch = following
            following = next(batches, None)

            # the images of this batch, and a start on those of the following one
            if images_are_used:
                current = coming or reader.submit(batch.read)
                coming = reader.submit(following.read) if following else None
                batch.set_images(current.result())

            yield batch
            images_are_used = batch.has_images and batch.is_read_ahead


def _padded(rows: list[np.ndarray], fill: list[int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Return index and mask [K, B], see `Federation.batch`."""
    width = max(map(len, rows))
    index = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), bool)
    for k, row in enumerate(rows):
        if fill is not None:
            index[k] = fill[k]
        elif len(row):
            # a client may have no image left
            index[k] = row[0]
        index[k, : len(row)] = row
        mask[k, : len(row)] = True
    return index, mask


class BatchLoader(Protocol):
    """Where the images of a batch, and what the backbone makes of them, come from.

    A batch asks its loader once for its images. A part of a batch has the loader of the whole.
    """

    def is_read_ahead(self, batch: "Batch") -> bool:
        """Return True if the images are read while the GPU works on another batch."""
        ...

    def read(self, batch: "Batch") -> torch.Tensor:
        """Read the images [K, B, H, W, channels], to the CPU."""
        ...

    def images(self, batch: "Batch") -> torch.Tensor:
        """Return the images [K, B, H, W, channels], on the device."""
        ...

    def class_tokens(self, batch: "Batch", block: int | None) -> torch.Tensor:
        """Return the class tokens [K, B, d] at the input of a block (from 1), or the final ones."""
        ...

    def patches(self, batch: "Batch") -> torch.Tensor:
        """Return the projected patch tokens [K, B, T, d] of a CLIP."""
        ...


class StoredImages:
    """Loads the images of a batch as they are in the image store, and tokens from the caches."""

    def is_read_ahead(self, batch: "Batch") -> bool:
        """Return True on a GPU that does not hold all images."""
        return batch.source.device.type == "cuda" and batch.source.resident is None

    def read(self, batch: "Batch") -> torch.Tensor:
        """Read the images from the store, to the CPU."""
        return pinned(torch.from_numpy(batch.source.store.images(batch.index)), batch.source.device)

    def images(self, batch: "Batch") -> torch.Tensor:
        """Return the images, on the device: from there if it holds all, else from the store."""
        resident = batch.source.resident
        if resident is not None:
            return resident[batch.rows]
        return self.read(batch).to(batch.source.device, non_blocking=True)

    def class_tokens(self, batch: "Batch", block: int | None) -> torch.Tensor:
        """Return the class tokens [K, B, d] of the cache."""
        return batch.source.tokens(block)[batch.rows].float()

    def patches(self, batch: "Batch") -> torch.Tensor:
        """Return the patch tokens [K, B, T, d] of the cache."""
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
        source: the data that the batch is of.
        index: rows of the image store [K, B].
        counts: number of each client's examples [K], without those that fill up.
        rows: the same as `index`, on the device.
        mask: bool [K, B], false where an example of the client fills up.
        seen: while training, how many examples each client [K] has had in this phase before.
        loader: reads the images, and gives their tokens.
        whole: the batch that this is a part of, whose images are read, and drawn at random, at
            once; None if it is no part.
        columns: the columns of `whole` that this part has.
        loaded: the images, once somebody has read them; ask for `images` instead.
    """

    source: Federation
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
        """Read the images, to the CPU."""
        return self.loader.read(self)

    @property
    def has_images(self) -> bool:
        """Return True if the images have been read."""
        return self.loaded is not None

    def set_images(self, images: torch.Tensor) -> None:
        """Take the images that `read` returned, and send them to the device."""
        self.loaded = images.to(self.source.device, non_blocking=True)

    @property
    def images(self) -> torch.Tensor:
        """Return the images, uint8 [K, B, H, W, channels]; they are read once."""
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
        """Return the class tokens [K, B, d] at the input of a block (from 1), or the final ones."""
        return self.loader.class_tokens(self, block)

    @cached_property
    def patches(self) -> torch.Tensor:
        """Return the projected patch tokens [K, B, T, d] of a CLIP, from the cache."""
        return self.loader.patches(self)

    def parts(self, size: int | None) -> Iterator["Batch"]:
        """Yield the batch in parts of at most `size` images per client; None: the batch itself.

        In a later part, clients that have no images left are masked altogether.
        """
        width = self.index.shape[1]
        if size is None or size >= width:
            yield self
            return
        for start in range(0, width, size):
            yield self.part(slice(start, start + size))

    def part(self, columns: slice) -> "Batch":
        """Return the images of these columns as a batch."""
        # each client's examples to the left of the part, and to the left of its end, [K]
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


def load_partition(
    store: ImageStore,
    partition: Path,
    classes: Sequence[str],
    device: torch.device,
    tokens: Callable[[int | None], torch.Tensor] | None = None,
    patches: Callable[[], torch.Tensor] | None = None,
) -> Federation:
    """Join a partition's Parquet file with its image store; unused caches may be None."""
    # the columns of the partition, [N] each
    table = read_table(partition, PARTITION_SCHEMA)
    client = table["client_id"].to_numpy()
    test = table["test"].to_numpy()
    participating = table["participating"].to_numpy()
    domains = table["domain"].to_numpy(zero_copy_only=False)
    rounds = None
    if "arrives" in table.column_names:
        rounds = (table["arrives"].to_numpy(), table["leaves"].to_numpy())

    # the rows of every client
    train_rows = _rows_of_clients(client, ~test)
    test_rows = _rows_of_clients(client, test)

    # classes of which no client has an image are novel; the others are numbered from 0
    novel = np.setdiff1d(store.labels, store.labels[client != UNASSIGNED])
    numbers = np.setdiff1d(np.arange(len(classes)), novel)
    labels = _positions(store.labels, numbers, len(classes))

    data = Federation(
        store=store,
        train=train_rows,
        test=test_rows,
        participating=sorted({int(k) for k in client[participating]}),
        labels=torch.from_numpy(labels).to(device),
        priors=class_priors(labels, train_rows, len(numbers)).to(device),
        domains=[client_domain(domains[rows]) for rows in train_rows],
        tokens=tokens or missing_cache_reader("features"),
        patches=patches,
        classes=tuple(name for k, name in enumerate(classes) if k in numbers),
        device=device,
        rounds=rounds,
    )
    if not len(novel):
        return data

    # every client is also tested on all images of novel classes
    novel_rows = np.flatnonzero(test & np.isin(store.labels, novel))
    novel_labels = _positions(store.labels, novel, len(classes))
    novel_names = [name for k, name in enumerate(classes) if k in novel]
    tested = with_test_images(data, novel_rows, novel_labels, novel_names)
    return replace(data, numbers=numbers, unseen={NOVEL_CLASSES: tested})


def _positions(labels: np.ndarray, numbers: np.ndarray, classes: int) -> np.ndarray:
    """Return the position of every label [N] among the classes `numbers`; -1 for one of others."""
    position = np.full(classes, -1)
    position[numbers] = np.arange(len(numbers))
    return position[labels]


def with_test_images(
    data: Federation, rows: np.ndarray, labels: np.ndarray, classes: Sequence[str], **other: Any
) -> Federation:
    """Return the same clients, each tested on all `rows`, among `classes` that it never trained on.

    Class priors are uniform. `labels` [N] are those of all images; `other` may hold `store`,
    `tokens` and `patches` of other images than those of `data`.
    """
    clients = data.num_clients
    count = len(classes)
    return replace(
        data,
        test=[rows] * clients,
        labels=torch.from_numpy(labels).to(data.device),
        priors=torch.full((clients, count), 1 / count, device=data.device),
        classes=tuple(classes),
        **other,
    )


def _rows_of_clients(client: np.ndarray, half: np.ndarray) -> list[np.ndarray]:
    """Return the rows of every client, ascending, among the `half` [N] of all rows."""
    rows = np.flatnonzero(half & (client != UNASSIGNED))
    rows = rows[np.argsort(client[rows], kind="stable")]
    counts = np.bincount(client[rows], minlength=int(client.max()) + 1)
    return np.split(rows, np.cumsum(counts)[:-1])


def shuffled_batches(
    rows: np.ndarray, size: int, epochs: int, seed: int, *stream: int, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """Yield one client's minibatches of `size` rows, in a fresh order for every epoch.

    `drop_last` leaves out a smaller last one, unless it is the only one.
    """
    used = len(rows)
    if drop_last and len(rows) >= size:
        used -= len(rows) % size

    for epoch in range(epochs):
        generator = torch_generator(seed, "batches", *stream, epoch)
        order = torch.randperm(len(rows), generator=generator).numpy()
        for start in range(0, used, size):
            yield rows[order[start : start + size]]
