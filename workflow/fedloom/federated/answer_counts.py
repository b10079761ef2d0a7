"""Count the answers of an evaluation by class, and by the confidence with which they are given."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fedloom.common.run_tables import CALIBRATION_BINS, CALIBRATION_SCHEMA, CONFUSION_SCHEMA
from fedloom.federated.task import Task


@dataclass(frozen=True)
class Score:
    """How a client, or the server's model, answered some images."""

    # the images, as rows of the image store [n]
    images: np.ndarray
    # the predicted class of each image [n]
    predicted: np.ndarray
    # the softmax probability of the predicted class, as float32 [n]
    confidence: np.ndarray
    # the number of correct answers
    correct: int
    # the sum of the cross-entropies
    loss: float


class AnswerCounts:
    """Count the answers of an evaluation, client by client, for two tables of a run."""

    def __init__(self) -> None:
        # a table for each client, in the order of the evaluation
        self._confusion = [CONFUSION_SCHEMA.empty_table()]
        self._calibration = [CALIBRATION_SCHEMA.empty_table()]

    def add(self, task: Task, client: int, scores: Sequence[Score]) -> None:
        """Count the answers of a client, or of SERVER_MODEL, in round `task.round`."""
        # the class of every image [n] and the predicted class [n], by the dataset's class numbers
        images = np.concatenate([score.images for score in scores])
        predicted = np.concatenate([score.predicted for score in scores])
        confidence = np.concatenate([score.confidence for score in scores])
        if task.data.numbers is not None:
            predicted = task.data.numbers[predicted]
        labels = task.data.store.labels[images]

        # one row for each pair of classes that occurs, sorted by class and predicted class
        pairs, counts = np.unique(np.stack([labels, predicted]), axis=1, return_counts=True)
        of_evaluation = {"round": task.round, "client_id": client}
        columns = {"label": pairs[0], "predicted": pairs[1], "count": counts}
        self._confusion.append(_table(of_evaluation, columns, CONFUSION_SCHEMA))

        # one row for each bin that occurs, sorted by bin
        columns = count_by_confidence(confidence, labels == predicted)
        self._calibration.append(_table(of_evaluation, columns, CALIBRATION_SCHEMA))

    def confusion(self) -> pa.Table:
        """Return the counts by class, sorted by round, client, class and predicted class."""
        return _sorted(self._confusion)

    def calibration(self) -> pa.Table:
        """Return the counts by confidence, sorted by round, client and bin."""
        return _sorted(self._calibration)


def count_by_confidence(confidence: np.ndarray, is_correct: np.ndarray) -> dict[str, np.ndarray]:
    """Count images by the confidence of their answer, in CALIBRATION_BINS bins of one width.

    Bin m has the confidences in (m / M, (m + 1) / M] for M bins, as in Guo et al., "On Calibration
    of Modern Neural Networks", ICML 2017.

    Args:
        confidence: the confidence of each answer, from 0 to 1 [n].
        is_correct: whether each answer is correct [n].

    Returns:
        The bins with images, ascending (`bin`); the number of their images (`count`) and of their
        correct answers (`correct`), and the sum of their confidences (`confidence`).
    """
    exact = confidence.astype(np.float64)
    bins = np.ceil(exact * CALIBRATION_BINS).astype(int) - 1
    # rounding may lead to a confidence of 0, or to one just above 1
    bins = bins.clip(0, CALIBRATION_BINS - 1)

    found, places, counts = np.unique(bins, return_inverse=True, return_counts=True)
    return {
        "bin": found,
        "count": counts,
        "correct": np.bincount(places, is_correct).astype(int),
        "confidence": np.bincount(places, exact),
    }


def _table(
    of_evaluation: dict[str, int], columns: dict[str, np.ndarray], schema: pa.Schema
) -> pa.Table:
    """Return a table with the same round and client in every row."""
    rows = len(next(iter(columns.values())))
    repeated = {name: np.full(rows, value) for name, value in of_evaluation.items()}
    every = repeated | columns
    arrays = [pa.array(every[field.name].astype(field.type.to_pandas_dtype())) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, sorted by round and client; rows of a client keep their order.

    A client has one table, whose rows are sorted already.
    """
    table = pa.concat_tables(tables)
    # lexsort sorts by the last key first, and is stable
    order = np.lexsort((table["client_id"].to_numpy(), table["round"].to_numpy()))
    return table.take(pa.array(order)).combine_chunks()
