"""Confusion matrices of an evaluation, as rows: class, predicted class, number of test images."""

import numpy as np
import pyarrow as pa

from fedloom.federated.rows import CONFUSION
from fedloom.federated.task import Task


class Confusion:
    """Count the answers of one evaluation; pairs of classes that never occur have no row."""

    def __init__(self) -> None:
        # one per client, int32 [n, 5], in the columns' order
        self._rows = [np.empty((0, len(CONFUSION)), np.int32)]

    def add(self, task: Task, client: int, images: np.ndarray, predicted: np.ndarray) -> None:
        """Count the answers of a client, or of SERVER_MODEL, in round `task.round`.

        Args:
            images: rows of the image store [n].
            predicted: the class that each of them was taken for [n].
        """
        pairs = np.stack([task.data.store.labels[images], predicted])
        (labels, answers), counts = np.unique(pairs, axis=1, return_counts=True)
        columns = (np.full_like(labels, task.round), np.full_like(labels, client), labels, answers)
        self._rows.append(np.stack([*columns, counts], 1).astype(np.int32))

    def table(self) -> pa.Table:
        """Return the rows, by round, client, class and predicted class.

        The global test is that of client SERVER_MODEL.
        """
        rows = np.concatenate(self._rows)
        rows = rows[np.lexsort(rows[:, 3::-1].T)]
        return pa.Table.from_arrays(list(rows.T), schema=CONFUSION)
