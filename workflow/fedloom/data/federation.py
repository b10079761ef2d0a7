"""Give methods a partitioned dataset: clients, their images, batches with a client axis."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedloom.data.batch import Batch, missing_cache_reader
from fedloom.data.store import ImageStore
from fedloom.machine.transfers import fits_on_gpu, to_device

# images that are copied to a GPU at once
COPIED_AT_ONCE = 1024


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

    def for_round(self, round_number: int) -> "Federation":
        """Return the data of round `round_number`; round 0 has the data of round 1.

        Images that have not arrived are neither in `train` nor in `test`. Images that have left
        are not in `train`.
        """
        if self.rounds is None:
            return self
        starts = np.unique(self.rounds.arrives)
        part = int(np.searchsorted(starts, max(round_number, 1), "right")) - 1
        whole = self.whole or self
        return whole._part(part, tuple(starts))

    @cached_property
    def _part(self) -> "Callable[[int, tuple[int, ...]], Federation]":
        """Return the function `_data_of_part` for this data, which keeps the last parts.

        The parts belong to the data and go with them, and with them the images. A cache of the
        module would hold both until the process ends.
        """
        return lru_cache(maxsize=4)(partial(_data_of_part, self))

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

    def batch(self, rows: list[np.ndarray], fill: list[int] | None = None) -> Batch:
        """Return one batch [K, B] with the rows of K clients; B is the largest number of rows.

        A client with fewer rows is padded, and the mask is False at the padding. The padding
        repeats the row `fill[k]` of client k, by default the first of its rows.
        """
        return next(self.batches([rows], fill))

    def batches(
        self, steps: Sequence[list[np.ndarray]], fill: list[int] | None = None
    ) -> Iterator[Batch]:
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


# The copy of a store's images on a device, or None if they do not fit. It serves all Federations of
# the store, which differ in clients and not in images, and it goes when nobody has the store.
_COPY: WeakKeyDictionary[ImageStore, dict[torch.device, torch.Tensor | None]] = WeakKeyDictionary()


def _copy_to_gpu(store: ImageStore, device: torch.device) -> torch.Tensor | None:
    """Copy all images to a GPU once; return None if they do not fit. See `Federation.resident`."""
    if device not in _COPY.get(store, {}):
        # a GPU holds the images of one store at a time
        _COPY.clear()
        _COPY[store] = {device: _new_copy(store, device)}
    return _COPY[store][device]


def _new_copy(store: ImageStore, device: torch.device) -> torch.Tensor | None:
    """Return a copy of all images on a GPU; None if they do not fit there."""
    if not fits_on_gpu(store.nbytes, device):
        return None
    images = torch.empty((len(store), *store.shape), dtype=torch.uint8, device=device)
    for start in range(0, len(store), COPIED_AT_ONCE):
        rows = np.arange(start, min(start + COPIED_AT_ONCE, len(store)))
        images[start : start + len(rows)] = torch.from_numpy(store.images(rows))
    return images


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
