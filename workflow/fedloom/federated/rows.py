"""Rows of a job's result files: tables of one round each, joined at the job's end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedloom.common.ids import SERVER_MODEL
from fedloom.federated.task import Task

EVALUATION = pa.schema(
    [
        ("round", pa.int32()),
        ("client_id", pa.int32()),
        ("domain", pa.string()),
        ("participating", pa.bool_()),
        ("personalized", pa.bool_()),
        ("num_test", pa.int32()),
        ("num_correct", pa.int32()),
        ("loss", pa.float64()),
    ]
)
TEST_SETS = EVALUATION.append(pa.field("test_set", pa.string()))  # of the artefact of that name
ROUNDS = pa.schema(
    [
        ("round", pa.int32()),
        ("seconds", pa.float64()),
        ("processor_seconds", pa.float64()),
        ("threads", pa.int32()),
        ("cores", pa.int32()),
        ("bytes_up", pa.int64()),
        ("bytes_up_used", pa.int64()),
        ("bytes_down", pa.int64()),
        ("train_loss", pa.float64()),
        ("guessing_loss", pa.float64()),
        ("clients", pa.int32()),
    ]
)
CLIENTS = pa.schema(
    [
        ("round", pa.int32()),
        ("client_id", pa.int32()),
        ("num_examples", pa.int64()),
        ("work", pa.float64()),
        ("received", pa.bool_()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
    ]
)
CONFUSION = pa.schema(
    [(name, pa.int32()) for name in ("round", "client_id", "label", "predicted", "count")]
)


@dataclass(frozen=True)
class Rows:
    """What one round, or several, added to the job's tables.

    Attributes:
        evaluation: a row per client that was evaluated (two if it is personalised), and one of the
            global test; of runs with a trigger also `backdoor_rate`, null for the global test.
        rounds: the columns of ROUNDS, then the server's metrics by name.
        clients: the columns of CLIENTS, then every metric by name, null if it was not reported.
        confusion: a row per evaluated client, class and predicted class.
    """

    evaluation: pa.Table
    rounds: pa.Table
    clients: pa.Table
    confusion: pa.Table

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
        return cls(
            _join([rows.evaluation for rows in parts], EVALUATION),
            _join([rows.rounds for rows in parts], ROUNDS),
            _join([rows.clients for rows in parts], CLIENTS),
            _join([rows.confusion for rows in parts], CONFUSION),
        )

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

    def evaluated_clients(self) -> dict[int, set[int]]:
        """Return the ids of the clients that were evaluated, by round."""
        clients: dict[int, set[int]] = {}
        pairs = (self.evaluation[name].to_pylist() for name in ("round", "client_id"))
        for number, client in zip(*pairs, strict=True):
            clients.setdefault(number, set()).add(client)
        return {number: ids - {SERVER_MODEL} for number, ids in clients.items()}

    def evaluated(self, rounds: Iterable[int]) -> "Rows":
        """Return the same without evaluations of other rounds."""
        numbers = list(rounds)
        evaluation, confusion = (
            table.filter(pa.array(np.isin(table["round"].to_numpy(), numbers))).combine_chunks()
            for table in (self.evaluation, self.confusion)
        )
        return Rows(evaluation, self.rounds, self.clients, confusion)


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


class Confusion:
    """Count the answers of an evaluation by client, class and predicted class, if there are any."""

    def __init__(self) -> None:
        self._rows = [np.empty((0, len(CONFUSION)), np.int32)]  # [n, columns] of each client

    def add(self, task: Task, client: int, images: np.ndarray, predicted: np.ndarray) -> None:
        """Count the answers of a client, or of SERVER_MODEL, in round `task.round`.

        `images` are rows of the image store [n], `predicted` the class [n] given to each.
        """
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
