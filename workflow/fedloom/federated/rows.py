"""Rows of a job's result files: tables of one round each, joined at the job's end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.run_tables import CLIENTS_SCHEMA, CONFUSION, EVALUATION_SCHEMA, ROUNDS_SCHEMA
from fedloom.common.run_tables import TEST_SETS_SCHEMA as TEST_SETS_SCHEMA
from fedloom.federated.task import Task


@dataclass(frozen=True)
class ClientRow:
    """What a client did in a round: a row of clients.parquet.

    Attributes:
        work: share of its local steps that the client completed.
        received: False if a wrapper lost the update, or left it out.
        attacker: whether the client attacks; None in a run without attackers.
        metrics: what the client reports, by the names of further columns: `train_loss` and others.
    """

    round: int
    client_id: int
    num_examples: int
    work: float
    received: bool
    bytes_up: int
    bytes_down: int
    attacker: bool | None
    metrics: dict[str, float]

    def columns(self) -> dict[str, Any]:
        """Return the values of the row by the names of their columns."""
        values = {name: getattr(self, name) for name in CLIENTS_SCHEMA.names}
        if self.attacker is not None:
            values["attacker"] = self.attacker
        return values | self.metrics


@dataclass(frozen=True)
class RoundRow:
    """What a round did: a row of rounds.parquet, and one of clients.parquet for every update.

    Attributes:
        seconds: from the round's begin to the server's new state.
        processor_seconds: of all threads.
        bytes_up_used: the bytes of the updates that the server used.
        train_loss: mean of the clients that report one.
        guessing_loss: mean over the clients of the loss that a guess has.
        clients: number of clients that took part.
        updates: the rows of these clients.
        metrics: those of the server's state, by the names of further columns.
    """

    round: int
    seconds: float
    processor_seconds: float
    threads: int
    cores: int
    bytes_up: int
    bytes_up_used: int
    bytes_down: int
    train_loss: float
    guessing_loss: float
    clients: int
    updates: list[ClientRow]
    metrics: dict[str, float]

    def columns(self) -> dict[str, Any]:
        """Return the values of the row by the names of their columns."""
        values = {name: getattr(self, name) for name in ROUNDS_SCHEMA.names}
        return values | self.metrics


@dataclass(frozen=True)
class EvaluationRow:
    """How a client, or the server's model, answered test images: a row of evaluation.parquet.

    Attributes:
        client_id: SERVER_MODEL for the server's model, whose domain is "".
        personalized: whether the client answered with the state of `personalize`.
        loss: mean cross-entropy.
        metrics: further columns: the share of correct answers to each part of a stream, and
            `backdoor_rate`, the share of triggered images taken for the wanted class.
    """

    round: int
    client_id: int
    domain: str
    participating: bool
    personalized: bool
    num_test: int
    num_correct: int
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """Return the values of the row by the names of their columns."""
        values = {name: getattr(self, name) for name in EVALUATION_SCHEMA.names}
        return values | self.metrics


@dataclass(frozen=True)
class TestSetRow:
    """How a client answered one of several test sets: a row of the artefact `test_sets`."""

    evaluation: EvaluationRow
    test_set: str

    def columns(self) -> dict[str, Any]:
        """Return the values of the row by the names of their columns."""
        return self.evaluation.columns() | {"test_set": self.test_set}


@dataclass(frozen=True)
class Rows:
    """The rows of one or several rounds in the job's tables; metrics come last."""

    # a row per client that was evaluated (two if it is personalised), and one of the global test;
    # of runs with a trigger also `backdoor_rate`, null for the global test
    evaluation: pa.Table
    rounds: pa.Table
    clients: pa.Table
    # a row per evaluated client, class and predicted class
    confusion: pa.Table

    @classmethod
    def of(cls, row: RoundRow, evaluated: Sequence[EvaluationRow], confusion: pa.Table) -> "Rows":
        """Return the rows of one round: `train_round`'s row, and those of its evaluation."""
        return cls(
            evaluation=table_with_metrics(
                [each.columns() for each in evaluated], EVALUATION_SCHEMA
            ),
            rounds=table_with_metrics([row.columns()], ROUNDS_SCHEMA),
            clients=table_with_metrics(
                [update.columns() for update in row.updates], CLIENTS_SCHEMA
            ),
            confusion=confusion,
        )

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of all `parts`, in their order."""
        return cls(
            evaluation=_join([rows.evaluation for rows in parts], EVALUATION_SCHEMA),
            rounds=_join([rows.rounds for rows in parts], ROUNDS_SCHEMA),
            clients=_join([rows.clients for rows in parts], CLIENTS_SCHEMA),
            confusion=_join([rows.confusion for rows in parts], CONFUSION),
        )

    @property
    def size(self) -> int:
        """Return the bytes of all tables."""
        return sum(table.nbytes for table in self._tables().values())

    def _tables(self) -> dict[str, pa.Table]:
        """Return the tables by name."""
        return {table.name: getattr(self, table.name) for table in fields(self)}

    def pack(self) -> dict[str, Tensor]:
        """Return the tables as Arrow streams, uint8 [bytes], for a safetensors file."""
        packed = {}
        for name, table in self._tables().items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            packed[name] = torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)
        return packed

    @classmethod
    def unpack(cls, packed: dict[str, Tensor]) -> "Rows":
        """Return the tables that `pack` packed."""
        tables = {
            name: pa.ipc.open_stream(stream.cpu().numpy()).read_all()
            for name, stream in packed.items()
        }
        return cls(**tables)

    def clients_evaluated_in(self, number: int) -> set[int]:
        """Return the ids of the clients that were evaluated after a round."""
        clients = self.evaluation["client_id"].to_numpy()
        of_round = self.evaluation["round"].to_numpy() == number
        return set(clients[of_round].tolist()) - {SERVER_MODEL}

    def with_evaluations_of(self, rounds: Iterable[int]) -> "Rows":
        """Return the same without evaluations of other rounds."""
        kept = [*rounds]
        return replace(
            self,
            evaluation=_of_rounds(self.evaluation, kept),
            confusion=_of_rounds(self.confusion, kept),
        )


def _of_rounds(table: pa.Table, rounds: list[int]) -> pa.Table:
    """Return the rows of a table that are of these rounds."""
    is_kept = np.isin(table["round"].to_numpy(), rounds)
    return table.filter(pa.array(is_kept)).combine_chunks()


def table_with_metrics(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return a table of rows: the columns of a schema, then what else there is, as numbers."""
    names = sorted(set().union(*rows) - set(schema.names))
    full = pa.schema([*schema, *((name, pa.float64()) for name in names)])
    return pa.Table.from_pylist(list(rows), schema=full)


def _join(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of tables that have the columns of a schema, and any further metrics."""
    table = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    metrics = sorted(set(table.column_names) - set(schema.names))
    return table.select([*schema.names, *metrics]).combine_chunks()


@dataclass(frozen=True)
class Score:
    """How a client, or the server's model, answered its images."""

    # rows of the image store [n]
    images: np.ndarray
    # the class predicted for each [n]
    predicted: np.ndarray
    # number of right answers
    correct: int
    # sum of the cross-entropies
    loss: float


class Confusion:
    """Count the answers of an evaluation by client, class and predicted class, if there are any."""

    def __init__(self) -> None:
        self._rows = [np.empty((0, len(CONFUSION)), np.int32)]  # [n, columns] of each client

    def add(self, task: Task, client: int, scores: Sequence[Score]) -> None:
        """Count the answers of a client, or of SERVER_MODEL, in round `task.round`."""
        # the class of every image [n], and the class predicted for it, as the dataset numbers them
        images = np.concatenate([score.images for score in scores])
        predicted = np.concatenate([score.predicted for score in scores])
        if task.data.numbers is not None:
            predicted = task.data.numbers[predicted]
        pairs = np.stack([task.data.store.labels[images], predicted])

        # a row per pair that occurs
        (labels, answers), counts = np.unique(pairs, axis=1, return_counts=True)
        rounds = np.full_like(labels, task.round)
        clients = np.full_like(labels, client)
        rows = np.stack([rounds, clients, labels, answers, counts], 1)
        self._rows.append(rows.astype(np.int32))

    def table(self) -> pa.Table:
        """Return the rows, by round, client, class and predicted class."""
        rows = np.concatenate(self._rows)
        rounds, clients, labels, predicted, _ = rows.T
        # of the keys of lexsort, the last counts most
        rows = rows[np.lexsort((predicted, labels, clients, rounds))]
        return pa.Table.from_arrays(list(rows.T), schema=CONFUSION)
