"""Read the numbers of runs from their Parquet files."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.io import read_table, write_table
from fedloom.plan.runs import Run
from fedloom.plan.shown import ShownRun


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


def join(parts: Sequence[Path], out: Path, run: Run) -> None:
    """Write the jobs' rows as one Parquet file, in the order given.

    The run's labels come first in every row, so that the files of many runs are one data frame.
    Names are dictionary-encoded columns; the seed is a number. A column that only some of the jobs
    have is null in the rows of the others.
    """
    tables = [read_table(part) for part in parts]
    table = pa.concat_tables(tables, promote_options="default")
    for position, (name, value) in enumerate(vars(run).items()):
        kind = pa.int32() if name == "seed" else pa.dictionary(pa.int32(), pa.string())
        column = pa.array([value] * len(table), kind)
        table = table.add_column(position, name, column)
    write_table(out, table)


def accuracies(evaluation: pd.DataFrame, rounds: Sequence[int]) -> dict[str, float]:
    """Compute accuracies in percent, each the mean over `rounds`.

    Args:
        evaluation: rows of evaluation.parquet.

    Returns:
        `participating_mean`, `participating_worst`, `held_out_mean`, `held_out_worst`: the
        unweighted mean and the minimum over the clients that take part in training, and over those
        held out (PEP-FedPT, Section 5); `global` on all test images. A group without rows has no
        entry.
    """
    rows = evaluation[evaluation["round"].isin(rounds)]
    percent = 100 * rows["num_correct"] / rows["num_test"]
    server = rows["client_id"] == SERVER_MODEL
    overall, rows, percent = percent[server], rows[~server], percent[~server]
    result = {}
    for name, group in (("participating", True), ("held_out", False)):
        chosen = percent[rows["participating"] == group].groupby(rows["round"])
        if len(chosen):
            result[f"{name}_mean"] = float(chosen.mean().mean())
            result[f"{name}_worst"] = float(chosen.min().mean())
    if len(overall):
        result["global"] = float(overall.mean())
    return result
