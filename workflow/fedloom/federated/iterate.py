"""Iterate over clients' images in order, without training."""

from collections.abc import Iterator

import numpy as np

from fedloom.data.federation import Batch, read_ahead
from fedloom.federated.groups import images_at_once
from fedloom.federated.task import Task


def iterate_examples(task: Task, rows: list[np.ndarray]) -> Iterator[Batch]:
    """Yield all rows of K clients in order, as batches [K, B] of at most `images_at_once` images.

    Where a client has run out of images, `batch.mask` is false and the client's first image fills
    the batch.

    Args:
        rows: rows of the image store of each of the K clients, not empty.
    """
    longest = max(map(len, rows))
    number = -(-longest // max(1, images_at_once(task) // len(rows)))
    width = -(-longest // number)  # batches of about equal size
    first = [int(row[0]) for row in rows]
    batches = [[row[k : k + width] for row in rows] for k in range(0, longest, width)]
    yield from read_ahead(task.data.batches(batches, first))
