"""Load a partitioned dataset from its files: the images of every client."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import torch

from fedloom.common.files import read_table
from fedloom.common.ids import NOVEL_CLASSES, UNASSIGNED, client_domain
from fedloom.common.run_tables import PARTITION_SCHEMA
from fedloom.data.batch import missing_cache_reader
from fedloom.data.federation import Federation, Stream, class_priors
from fedloom.data.store import ImageStore


class Caches(TypedDict, total=False):
    """The readers of caches that a Federation has, see its `tokens` and `patches`."""

    tokens: Callable[[int | None], torch.Tensor]
    patches: Callable[[], torch.Tensor]


class OtherImages(Caches, total=False):
    """The images of a store that takes the place of a Federation's, with their caches."""

    store: ImageStore


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
