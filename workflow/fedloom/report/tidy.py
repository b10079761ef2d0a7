"""All evaluations of a study as one tidy table: a data frame, or a view that DuckDB reads lazily.

Both take the record of the study (fedloom.study.records), with a column `filename`: where the
evaluations of each run lie.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.extras import require
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.io import read_table
from fedloom.report.metrics import percent
from fedloom.study import paths, provenance
from fedloom.study.runs import Run

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

COLUMNS = {
    "title": "the method's name in tables and figures",
    "method": "the method's label in the study",
    "options": "its options as JSON, with those that trials chose, and its wrappers' options",
    "learning_rate": "of its clients in the first round; missing if the method trains nothing",
    "dataset": "label of the data set",
    "partition": "label of the way its images are divided over clients",
    "backbone": "label of the backbone",
    "seed": "of the run and of its partition",
    "round": "after which clients were evaluated, counted from 1",
    "client": f"number of the client; {SERVER_MODEL} is the server's model",
    "domain": "of the client's images; empty for the server's model",
    "group": "`participating`: clients that train; `held_out`: clients that never train; the two "
    "with `_before`: the same clients before the hook `personalize`, for a method that has it; "
    "`global`: the server's model on all test images",
    "split": "`test` images; of tuning trials the `validation` images that clients held back",
    "correct": "number of images classified correctly",
    "total": "number of images",
    "accuracy": "100 * correct / total, in percent",
    "loss": "mean cross-entropy of the images, in nats",
}
OF_RUNS = ("title", "method", "options", "dataset", "partition", "backbone", "split")  # as labels
GROUPS = ("participating", "held_out", "participating_before", "held_out_before", "global")
READ = ("round", "client_id", "domain", "participating", "personalized")
READ += ("num_correct", "num_test", "loss")
SQL = f"""
select title, method, options, learning_rate, dataset, partition, backbone, seed, round,
  client_id as client, domain,
  cast(case when client_id = {SERVER_MODEL} then 'global' else
    case when participating then 'participating' else 'held_out' end ||
    case when personalized or not personalises then '' else '_before' end
  end as enum {GROUPS}) as "group",
  split, num_correct as correct, num_test as total,
  100.0 * num_correct / num_test as accuracy, loss
from evaluations join runs using (filename)
  join (select filename, bool_or(personalized) as personalises from evaluations group by filename)
  using (filename)
where round <= rounds
"""


def with_files(record: pa.Table, folder: Path, trials: bool) -> pd.DataFrame:
    """Return the runs of a record, or its tuning trials, with `filename`; `folder` holds `results`.

    Labels are categories, in the order of the study. An error names a run whose evaluations are of
    other settings or data: another study with the same labels trained it since.
    """
    runs = record.to_pandas().astype({"seed": "int32", "learning_rate": float})
    runs = runs[(runs["split"] == "validation") == trials].reset_index(drop=True)
    if runs.empty:  # a record always has runs
        line = f"study '{_name(record)}' must have tuning trials, got none; set study.tune"
        raise FedLoomError(line)
    labels = zip(*(runs[name] for name in Run.__dataclass_fields__), strict=True)
    every = [Run(*each) for each in labels]
    made_by = runs[list(provenance.MADE_BY)].to_dict("records")
    for run, facts in zip(every, made_by, strict=True):
        if provenance.facts_of_run(run, folder) != facts:
            raise FedLoomError(
                f"{run.path}: made again with other settings or data than those of study "
                f"'{_name(record)}'; run the study again"
            )
    runs["filename"] = [str(folder / paths.at(paths.EVALUATION, run)) for run in every]
    for label in OF_RUNS:
        runs[label] = pd.Categorical(runs[label], runs[label].unique())
    return runs


def _name(record: pa.Table) -> str:
    """Return the name of the study whose record it is."""
    return record.schema.metadata[b"study"].decode()


def frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run, evaluated round, client and group, with the columns of COLUMNS."""
    tables = []
    for position, file in enumerate(runs["filename"]):
        table = read_table(Path(file)).select(READ)
        tables.append(table.append_column("run", pa.array(np.full(len(table), position))))
    rows = pa.concat_tables(tables).to_pandas(categories=["domain"])
    before = ~rows["personalized"] & rows.groupby("run")["personalized"].transform("any")
    names = np.where(rows["participating"], GROUPS[0], GROUPS[1]) + np.where(before, "_before", "")
    names = np.where(rows["client_id"] == SERVER_MODEL, "global", names)
    rows["group"] = pd.Categorical(names, GROUPS)
    rows["accuracy"] = percent(rows)
    rows = pd.concat([rows, runs.iloc[rows["run"]].reset_index(drop=True)], axis=1)
    rows = rows[rows["round"] <= rows["rounds"]]  # another study may have trained the run on
    renamed = {"client_id": "client", "num_correct": "correct", "num_test": "total"}
    return rows.rename(columns=renamed)[list(COLUMNS)].reset_index(drop=True)


def relation(runs: pd.DataFrame) -> "DuckDBPyRelation":
    """Return the rows of `frame` as a relation of DuckDB, which reads files when it is asked."""
    require("duckdb")
    import duckdb

    connection = duckdb.connect()
    connection.register("runs", runs)
    files = connection.read_parquet(runs["filename"].tolist(), filename=True)
    files.select(*READ, "filename").create_view("evaluations")
    return connection.sql(SQL)
