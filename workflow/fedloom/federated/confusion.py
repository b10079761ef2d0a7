"""Confusion matrices of evaluations, as rows: class, predicted class, number of test images."""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedloom.federated.task import Task

CONFUSION = pa.schema(
    [(name, pa.int32()) for name in ("round", "client_id", "label", "predicted", "count")]
)


class Confusion:
    """Count answers over the evaluations of a job; pairs of classes that never occur have no row.

    Attributes:
        rows: one per round, client, class and predicted class, int32 [n, 5], in the columns'
            order; the global test is that of client SERVER_MODEL.
    """

    def __init__(self, rows: Tensor | None = None):
        self.rows = torch.empty(0, len(CONFUSION), dtype=torch.int32) if rows is None else rows

    def add(self, task: Task, client: int, images: np.ndarray, predicted: np.ndarray) -> None:
        """Count the answers of a client, or of SERVER_MODEL, in round `task.round`.

        Args:
            images: rows of the image store [n].
            predicted: the class that each of them was taken for [n].
        """
        pairs = np.stack([task.data.store.labels[images], predicted])
        (labels, answers), counts = np.unique(pairs, axis=1, return_counts=True)
        columns = (np.full_like(labels, task.round), np.full_like(labels, client), labels, answers)
        new = torch.from_numpy(np.stack([*columns, counts], 1).astype(np.int32))
        self.rows = torch.cat([self.rows, new])

    def table(self, rounds: tuple[int, ...]) -> pa.Table:
        """Return the rows of these rounds, by round, client, class and predicted class."""
        rows = self.rows.numpy()
        rows = rows[np.isin(rows[:, 0], rounds)]
        rows = rows[np.lexsort(rows[:, 3::-1].T)]
        return pa.Table.from_arrays(list(rows.T), schema=CONFUSION)
