"""Give methods a partitioned dataset: clients, their images, batches with a client axis."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, TypedDict, Unpack

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


class Caches(TypedDict, total=False):
    """The readers of caches that a Federation has, see its `tokens` and `patches`."""

    tokens: Callable[[int | None], torch.Tensor]
    patches: Callable[[], torch.Tensor]


class OtherImages(Caches, total=False):
    """The images of a store that takes the place of a Federation's, with their caches."""

    store: ImageStore


class Stream(NamedTuple):
    """The rounds in which clients have the images of a stream.

    Attributes:
        arrives: the first round [N] in which each image is there.
        leaves: the first round [N] in which clients no longer train on it.
    """

    arrives: np.ndarray
    leaves: np.ndarray


@dataclass(frozen=True)
class Arrived:
    """The parts of a stream that have arrived. Without `arrivals`, there is a single part.

    Attributes:
        part: number of the newest part, from 0.
        parts: number of parts at the end of the stream.
        training: bool [C], the classes that clients train on now.
        seen: bool [C], the classes that clients train on now or trained on before.
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
        priors: [clients, C], the share of every class in each client's training images (PEP-FedPT,
            Eq. 14). On a stream, these are the images that have arrived (see `class_priors`).
        tokens: a function that reads class tokens [N, d] of the unprompted backbone from the cache:
            those at the input of a block, counted from 1, or the final ones for None. For a CLIP,
            it reads image features.
        patches: a function that reads a CLIP's projected patch tokens [N, T, d] from the cache;
            None if the method does not need them. Tokens and patches have the cache's dtype; a
            batch converts them to float32.
        domains: name of each client's domain, by its training images (see `client_domain`).
        classes: names of the C classes that clients train on.
        numbers: the dataset's number of each class, [C]; None if labels are these numbers.
        unseen: further test sets, by name. Every client is tested on all images of each set, whose
            classes no client trains on.
        device: the device of a batch's tensors.
        rounds: for a partition with `arrivals`, the rounds in which each image arrives and leaves;
            None without a stream.
        arrived: the parts of the stream that have arrived; set in the data of a round (see
            `for_round`).
        earlier: per client, the rows of training images that have arrived and left again; set in
            the data of a round, None if there are none.
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
    rounds: Stream | None = None
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
        starts = np.unique(self.rounds.arrives)
        part = int(np.searchsorted(starts, max(number, 1), "right")) - 1
        return _data_of_part(self.whole or self, part, tuple(starts))

    @property
    def train_so_far(self) -> list[np.ndarray]:
        """Return each client's rows of training images that have arrived, even if they left again.

        Without a stream, these are all training images.
        """
        if self.earlier is None:
            return self.train
        return [np.union1d(left, now) for left, now in zip(self.earlier, self.train, strict=True)]

    def parts_of(self, client: int) -> list[np.ndarray]:
        """Return the client's rows in `train_so_far` as one array per round of arrival.

        Without a stream, the list holds a single array.
        """
        rows = self.train_so_far[client]
        if self.rounds is None:
            return [rows]
        arrives = self.rounds.arrives[rows]
        return [rows[arrives == start] for start in np.unique(arrives)]

    @property
    def tested(self) -> list[int]:
        """Return the ids of the clients with test images; on a stream, some may have none yet."""
        return [client for client, rows in enumerate(self.test) if len(rows)]

    @property
    def num_clients(self) -> int:
        """Return the number of clients, including held-out ones; their ids count from 0."""
        return len(self.train)

    @cached_property
    def position(self) -> dict[int, int]:
        """Return the index in `participating` of each participating client, by its id."""
        return {client: position for position, client in enumerate(self.participating)}

    @property
    def num_classes(self) -> int:
        """Return the number of classes, C."""
        return self.priors.shape[1]

    @property
    def resident(self) -> torch.Tensor | None:
        """Return all images on a GPU, uint8 [N, H, W, channels], or None if they stay on disk."""
        # Images that a wrapper changes stay on disk. A copy of them for every round would take the
        # place of the one copy that is kept.
        if type(self.store) is not ImageStore:
            return None
        return _copy_to_gpu(self.store, self.device)

    def batch(self, rows: list[np.ndarray], fill: list[int] | None = None) -> "Batch":
        """Return one batch [K, B] with the rows of K clients; B is the largest number of rows.

        A client with fewer rows is padded, and the mask is False at the padding. The padding
        repeats the row `fill[k]` of client k, by default the first of its rows.
        """
        return next(self.batches([rows], fill))

    def batches(
        self, steps: Sequence[list[np.ndarray]], fill: list[int] | None = None
    ) -> Iterator["Batch"]:
        """Yield a `batch` per step; the rows and masks of all steps go to the device at once."""
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
    """Copy arrays to the device with a single transfer; return one tensor per array."""
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
    """Return the data of the rounds in which part `part` of the stream is the newest.

    `starts` are the rounds in which the parts arrive.
    """
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


# a single copy serves all Federations of a store: they differ in clients, not in images
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
    """Return True if `size` bytes may stay on the device; False for a CPU, which reads files."""
    return device.type == "cuda" and memory.stays_on_gpu(size, gpu_bytes(device))


def gpu_bytes(device: torch.device) -> int:
    """Return the memory of a GPU in bytes."""
    return torch.cuda.get_device_properties(device).total_memory


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy values to the device without waiting for its queued work."""
    return pinned(torch.from_numpy(values), device).to(device, non_blocking=True)


def pinned(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values on the CPU, for a GPU in pinned memory, which it can read while both work."""
    if device.type == "cuda":
        return values.pin_memory()
    return values


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


def _padded(rows: list[np.ndarray], fill: list[int] | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the index and the mask of a batch, [K, B] each; see `Federation.batch`."""
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
        source: the data from which the batch was taken.
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


def load_partition(
    store: ImageStore,
    partition: Path,
    classes: Sequence[str],
    device: torch.device,
    tokens: Callable[[int | None], torch.Tensor] | None = None,
    patches: Callable[[], torch.Tensor] | None = None,
) -> Federation:
    """Read a partition's Parquet file, and join it with the image store.

    `tokens` and `patches` read the caches (see `Federation`); None: the method does not use them.
    """
    # the columns of the partition, [N] each
    table = read_table(partition, PARTITION_SCHEMA)
    client = table["client_id"].to_numpy()
    test = table["test"].to_numpy()
    participating = table["participating"].to_numpy()
    domains = table["domain"].to_numpy(zero_copy_only=False)
    rounds = None
    if "arrives" in table.column_names:
        rounds = Stream(table["arrives"].to_numpy(), table["leaves"].to_numpy())

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
    """Return each label's position among the classes `numbers`, [N]; -1 if it is not there."""
    position = np.full(classes, -1)
    position[numbers] = np.arange(len(numbers))
    return position[labels]


def with_test_images(
    data: Federation,
    rows: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    **other: Unpack[OtherImages],
) -> Federation:
    """Return the same clients, each tested on the same images, of classes that it never trained on.

    Class priors are uniform.

    Args:
        data: the clients.
        rows: rows of the test images in the store.
        labels: position of each image of the store in `classes`, [N].
        classes: names of the classes among which clients predict.
        other: `store`, `tokens` and `patches`, if the images are those of another store.
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
    """Return the rows of every client, ascending; rows count where `half`, bool [N], is True."""
    rows = np.flatnonzero(half & (client != UNASSIGNED))
    rows = rows[np.argsort(client[rows], kind="stable")]
    counts = np.bincount(client[rows], minlength=int(client.max()) + 1)
    return np.split(rows, np.cumsum(counts)[:-1])


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
