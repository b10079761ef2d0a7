"""Rows of a job's result files: tables of one round each, joined at the job's end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.run_tables import CLIENTS, CONFUSION, EVALUATION, ROUNDS
from fedloom.common.run_tables import TEST_SETS as TEST_SETS
from fedloom.federated.task import Task


@dataclass(frozen=True)
class Rows:
    """The rows of one or several rounds in the job's tables; metrics come last."""

    # a row per client that was evaluated (two if it is personalised), and one of the global test;
    # of runs with a trigger also `backdoor_rate`, null for the global test
    evaluation: pa.Table
    rounds: pa.Table
    clients: pa.Table
    confusion: pa.Table  # a row per evaluated client, class and predicted class

    @classmethod
    def of(cls, row: dict, evaluated: list[dict], confusion: pa.Table) -> "Rows":
        """Return the rows of one round: `train_round`'s row, and those of its evaluation."""
        own = {key: value for key, value in row.items() if key != "updates"}
        return cls(
            with_metrics(evaluated, EVALUATION),
            with_metrics([own], ROUNDS),
            with_metrics(row["updates"], CLIENTS),
            confusion,
        )

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of all `parts`, in their order."""
        names = ("evaluation", "rounds", "clients", "confusion")
        pairs = zip(names, (EVALUATION, ROUNDS, CLIENTS, CONFUSION), strict=True)
        return cls(*(_join([getattr(rows, name) for rows in parts], s) for name, s in pairs))

    @property
    def size(self) -> int:
        """Return the bytes of all tables."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    def pack(self) -> dict[str, Tensor]:
        """Return the tables as Arrow streams, uint8 [bytes], for a safetensors file."""
        packed = {}
        for field in fields(self):
            table, sink = getattr(self, field.name), pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            packed[field.name] = torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)
        return packed

    @classmethod
    def unpack(cls, packed: dict[str, Tensor]) -> "Rows":
        """Return the tables that `pack` packed."""
        return cls(**{k: pa.ipc.open_stream(v.cpu().numpy()).read_all() for k, v in packed.items()})

    def evaluated_clients(self, number: int) -> set[int]:
        """Return the ids of the clients that were evaluated after a round."""
        clients = self.evaluation["client_id"].to_numpy()
        return {*clients[self.evaluation["round"].to_numpy() == number].tolist()} - {SERVER_MODEL}

    def evaluated(self, rounds: Iterable[int]) -> "Rows":
        """Return the same without evaluations of other rounds."""
        evaluation, confusion = (
            table.filter(pa.array(np.isin(table["round"].to_numpy(), [*rounds]))).combine_chunks()
            for table in (self.evaluation, self.confusion)
        )
        return replace(self, evaluation=evaluation, confusion=confusion)


def with_metrics(rows: list[dict], schema: pa.Schema) -> pa.Table:
    """Return a table of rows: the columns of a schema, then what else there is, as numbers."""
    names = sorted({name for row in rows for name in row} - set(schema.names))
    full = pa.schema([*schema, *((name, pa.float64()) for name in names)])
    return pa.Table.from_pylist(rows, schema=full)


def _join(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of tables that have the columns of a schema, and any further metrics."""
    table = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    metrics = sorted(set(table.column_names) - set(schema.names))
    return table.select([*schema.names, *metrics]).combine_chunks()


@dataclass(frozen=True)
class Score:
    """How a client, or the server's model, answered its images."""

    images: np.ndarray  # rows of the image store [n]
    predicted: np.ndarray  # the class predicted for each
    correct: int
    loss: float  # sum of the cross-entropies


class Confusion:
    """Count the answers of an evaluation by client, class and predicted class, if there are any."""

    def __init__(self) -> None:
        self._rows = [np.empty((0, len(CONFUSION)), np.int32)]  # [n, columns] of each client

    def add(self, task: Task, client: int, scores: Sequence[Score]) -> None:
        """Count the answers of a client, or of SERVER_MODEL, in round `task.round`."""
        images = np.concatenate([score.images for score in scores])
        predicted = np.concatenate([score.predicted for score in scores])
        if task.data.numbers is not None:
            predicted = task.data.numbers[predicted]
        pairs = np.stack([task.data.store.labels[images], predicted])
        (labels, answers), counts = np.unique(pairs, axis=1, return_counts=True)
        columns = (np.full_like(labels, task.round), np.full_like(labels, client), labels, answers)
        self._rows.append(np.stack([*columns, counts], 1).astype(np.int32))

    def table(self) -> pa.Table:
        """Return the rows, by round, client, class and predicted class."""
        rows = np.concatenate(self._rows)
        rows = rows[np.lexsort(rows[:, 3::-1].T)]
        return pa.Table.from_arrays(list(rows.T), schema=CONFUSION)
