"""Read the numbers of runs from their Parquet files."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.io import read_table, write_table
from fedloom.common.receipts import read_receipt
from fedloom.config.rounds import Reported
from fedloom.study.plot_inputs import ShownRun
from fedloom.study.runs import Run

ROUNDING = 1e-6  # of a loss in float32: one that training leaves as it was is that of guessing


def frame(path: Path) -> pd.DataFrame:
    """Read a Parquet file of FedLoom as a data frame (see `read_table`)."""
    return read_table(path).to_pandas()


def evaluation(path: Path, personalized: bool = True) -> pd.DataFrame:
    """Read an evaluation.parquet with one row per round and client.

    Args:
        personalized: of a client that was evaluated without and with `personalize`, take the row
            with it, else the one without.
    """
    rows = frame(path)
    if not personalized:
        return rows[~rows["personalized"]]
    ordered = rows.sort_values("personalized", kind="stable")
    return ordered.drop_duplicates(["round", "client_id"], keep="last").sort_index()


def artefact(run: ShownRun) -> pd.DataFrame:
    """Read the method's own table of a run, for a kind that declares `x-artefact`."""
    return frame(artefact_file(run))


def artefact_file(run: ShownRun) -> Path:
    """Return the file of the method's own table of a run."""
    assert run.artefact is not None, "the kind declares no artefact"
    return run.artefact


def class_names(run: ShownRun) -> list[str]:
    """Return the names of the classes of a run's dataset, for a kind that `x-reads` names."""
    return [str(name) for name in read_receipt(run.store)["classes"]]


def join(parts: Sequence[Path], out: Path, run: Run) -> None:
    """Write the jobs' rows as one Parquet file, in the order given.

    The run's labels come first in every row, so that the files of many runs are one data frame.
    Names are dictionary-encoded columns; the seed is a number. A column that only some of the jobs
    have is null in the rows of the others.

    Raises:
        FedLoomError: a part is damaged.
    """
    table = pa.concat_tables(map(read_table, parts), promote_options="default")
    for position, (name, value) in enumerate(vars(run).items()):
        kind = pa.int32() if name == "seed" else pa.dictionary(pa.int32(), pa.string())
        column = pa.array([value] * len(table), kind)
        table = table.add_column(position, name, column)
    write_table(out, table)


def no_better_than_guessing(rounds: pd.DataFrame) -> bool:
    """Return True if the training loss is no lower than that of guessing, the log of the classes.

    The median over the last half of the rounds decides.

    Args:
        rounds: rows of rounds.parquet.
    """
    last = rounds.sort_values("round").tail((len(rounds) + 1) // 2)
    return bool(last["train_loss"].median() >= last["guessing_loss"].iloc[0] * (1 - ROUNDING))


def accuracies(evaluation: pd.DataFrame, reported: Reported) -> dict[str, float]:
    """Compute accuracies in percent, each the mean over the reported rounds.

    Args:
        evaluation: rows of evaluation.parquet.

    Returns:
        `participating_mean`, `participating_worst`, `held_out_mean`, `held_out_worst`: the
        unweighted mean and the minimum over the clients that take part in training, and over those
        held out (PEP-FedPT, Section 5); `global` on all test images. A group without rows has no
        entry. With `reported.worst_of`, the worst is the lowest mean over clients in these rounds.
    """
    server = evaluation["client_id"] == SERVER_MODEL
    clients = evaluation[~server]
    result = {}
    for name, group in (("participating", True), ("held_out", False)):
        of_group = clients[clients["participating"] == group]
        rows = of_group[of_group["round"].isin(reported.rounds)]
        if len(rows):
            result[f"{name}_mean"] = float(percent(rows).groupby(rows["round"]).mean().mean())
            result[f"{name}_worst"] = worst(of_group, reported)
    overall = evaluation[server & evaluation["round"].isin(reported.rounds)]
    if len(overall):
        result["global"] = float(percent(overall).mean())
    return result


def percent(rows: pd.DataFrame) -> pd.Series:
    """Return the accuracy in percent of every row of evaluation.parquet."""
    return 100 * rows["num_correct"] / rows["num_test"]


def worst(evaluation: pd.DataFrame, reported: Reported) -> float:
    """Return the worst client's accuracy in percent, averaged over the reported rounds.

    With `reported.worst_of`, the lowest mean over clients in these rounds (PEP-FedPT, footnote 4).

    Args:
        evaluation: rows of evaluation.parquet, of one group of clients.
    """
    rows = evaluation[evaluation["round"].isin(reported.worst_of or reported.rounds)]
    by_round = percent(rows).groupby(rows["round"])
    return float(by_round.mean().min() if reported.worst_of else by_round.min().mean())


def pooled(evaluation: pd.DataFrame, reported: Reported) -> float:
    """Return the accuracy in percent of all participating clients' test images together.

    A client counts by its number of test images; mean over the reported rounds.
    """
    chosen = evaluation["round"].isin(reported.rounds) & evaluation["participating"]
    total = evaluation[chosen].groupby("round")[["num_correct", "num_test"]].sum()
    return float(percent(total).mean())
