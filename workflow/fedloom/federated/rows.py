"""The rows of a job's result files: each round makes tables, which are joined at the job's end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.run_tables import (
    CALIBRATION_SCHEMA,
    CLIENTS_SCHEMA,
    CONFUSION_SCHEMA,
    EVALUATION_SCHEMA,
    ROUNDS_SCHEMA,
)
from fedloom.common.run_tables import TEST_SETS_SCHEMA as TEST_SETS_SCHEMA
from fedloom.federated.answer_counts import AnswerCounts

# the values of a row by the names of their columns
Columns = dict[str, str | float | None]


@dataclass(frozen=True)
class ClientRow:
    """A row of clients.parquet: what a client did in a round.

    Attributes:
        work: share of its local steps that the client completed.
        received: False if a wrapper lost the update or left it out.
        attacker: whether the client attacks; None in a run without attackers.
        metrics: `train_loss` and other numbers that the client reports. Their names are further
            columns.
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

    def columns(self) -> Columns:
        """Return the values of the row by column."""
        values = {name: getattr(self, name) for name in CLIENTS_SCHEMA.names}
        if self.attacker is not None:
            values["attacker"] = self.attacker
        return values | self.metrics


@dataclass(frozen=True)
class RoundRow:
    """A row of rounds.parquet: what a round did. It also has the rows of its clients.

    Attributes:
        seconds: time from the round's begin to the server's new state.
        processor_seconds: processor time of all threads.
        bytes_up_used: the bytes of the updates that the server used.
        train_loss: mean training loss of the clients that report one.
        guessing_loss: mean over the clients of the loss that a guess has.
        clients: number of clients that took part.
        updates: the rows of these clients.
        metrics: the metrics of the server's state. Their names are further columns.
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

    def columns(self) -> Columns:
        """Return the values of the row by column."""
        values = {name: getattr(self, name) for name in ROUNDS_SCHEMA.names}
        return values | self.metrics


@dataclass(frozen=True)
class EvaluationRow:
    """A row of evaluation.parquet: how a client, or the server's model, answered test images.

    Attributes:
        client_id: the client's id, or SERVER_MODEL for the server's model.
        domain: the client's domain; "" for the server's model.
        personalized: whether the client answered with the state of `personalize`.
        loss: mean cross-entropy.
        metrics: further columns. There is the accuracy on each part of a stream, and
            `backdoor_rate`, the share of triggered images that are taken for the wanted class.
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

    def columns(self) -> Columns:
        """Return the values of the row by column."""
        values = {name: getattr(self, name) for name in EVALUATION_SCHEMA.names}
        return values | self.metrics


@dataclass(frozen=True)
class TestSetRow:
    """A row of the artefact `test_sets`: how a client answered one of several test sets."""

    evaluation: EvaluationRow
    test_set: str

    def columns(self) -> Columns:
        """Return the values of the row by column."""
        return self.evaluation.columns() | {"test_set": self.test_set}


@dataclass(frozen=True)
class Rows:
    """The rows of one or several rounds, as the tables of a job. Metrics are the last columns."""

    # Each client that was evaluated has a row (or two, if it is personalised), and so has the
    # global test. Runs with a trigger have the column `backdoor_rate`, which is null for the global
    # test.
    evaluation: pa.Table
    rounds: pa.Table
    clients: pa.Table
    # each combination of evaluated client, class and predicted class has a row
    confusion: pa.Table
    # each combination of evaluated client and bin of confidence has a row
    calibration: pa.Table = field(default_factory=CALIBRATION_SCHEMA.empty_table)

    @classmethod
    def from_round(
        cls, row: RoundRow, evaluated: Sequence[EvaluationRow], counts: AnswerCounts
    ) -> "Rows":
        """Return the rows of one round.

        Args:
            row: the row that `train_round` returns.
            evaluated: the rows of the evaluation after the round.
            counts: the counts of the answers in that evaluation.
        """
        return cls(
            evaluation=table_with_metrics(
                [each.columns() for each in evaluated], EVALUATION_SCHEMA
            ),
            rounds=table_with_metrics([row.columns()], ROUNDS_SCHEMA),
            clients=table_with_metrics(
                [update.columns() for update in row.updates], CLIENTS_SCHEMA
            ),
            confusion=counts.confusion(),
            calibration=counts.calibration(),
        )

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Return the rows of all `parts`, in their order."""
        return cls(
            evaluation=_join([rows.evaluation for rows in parts], EVALUATION_SCHEMA),
            rounds=_join([rows.rounds for rows in parts], ROUNDS_SCHEMA),
            clients=_join([rows.clients for rows in parts], CLIENTS_SCHEMA),
            confusion=_join([rows.confusion for rows in parts], CONFUSION_SCHEMA),
            calibration=_join([rows.calibration for rows in parts], CALIBRATION_SCHEMA),
        )

    @property
    def size(self) -> int:
        """Return the number of bytes of all tables."""
        return sum(table.nbytes for table in self._tables().values())

    def _tables(self) -> dict[str, pa.Table]:
        """Return the tables by name."""
        return {table.name: getattr(self, table.name) for table in fields(self)}

    def pack(self) -> dict[str, Tensor]:
        """Return each table as an Arrow stream, a uint8 tensor, for a safetensors file."""
        packed = {}
        for name, table in self._tables().items():
            # most studies count no confidences; `unpack` then takes the empty default
            if name == "calibration" and not len(table):
                continue
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            packed[name] = torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)
        return packed

    @classmethod
    def unpack(cls, packed: dict[str, Tensor]) -> "Rows":
        """Return the rows from the result of `pack`."""
        tables = {
            name: pa.ipc.open_stream(stream.cpu().numpy()).read_all()
            for name, stream in packed.items()
        }
        return cls(**tables)

    def clients_evaluated_in(self, round_number: int) -> set[int]:
        """Return the ids of the clients that were evaluated after round `round_number`."""
        clients = self.evaluation["client_id"].to_numpy()
        is_of_round = self.evaluation["round"].to_numpy() == round_number
        return set(clients[is_of_round].tolist()) - {SERVER_MODEL}

    def with_evaluations_of(self, rounds: Iterable[int]) -> "Rows":
        """Return the same rows without the evaluations of rounds that are not in `rounds`."""
        kept = [*rounds]
        return replace(
            self,
            evaluation=_select_rounds(self.evaluation, kept),
            confusion=_select_rounds(self.confusion, kept),
            calibration=_select_rounds(self.calibration, kept),
        )


def _select_rounds(table: pa.Table, rounds: list[int]) -> pa.Table:
    """Return the rows of a table that belong to these rounds."""
    is_kept = np.isin(table["round"].to_numpy(), rounds)
    return table.filter(pa.array(is_kept)).combine_chunks()


def table_with_metrics(rows: Sequence[Columns], schema: pa.Schema) -> pa.Table:
    """Return a table with these rows: first the columns of a schema, then all others as numbers."""
    names = sorted(set().union(*rows) - set(schema.names))
    full = pa.schema([*schema, *((name, pa.float64()) for name in names)])
    return pa.Table.from_pylist(list(rows), schema=full)


def _join(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return one table with the rows of several tables.

    All tables have the columns of `schema`. A metric that only some of them have is null in the
    others.
    """
    table = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    metrics = sorted(set(table.column_names) - set(schema.names))
    return table.select([*schema.names, *metrics]).combine_chunks()
