"""Return all evaluations of a study as one table: a data frame, or a lazy view of DuckDB.

Both are made from the study's record (fedloom.planning.records), to which `with_files` adds the
paths of the runs' evaluations.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.files import check_table, read_table
from fedloom.common.ids import OWN_IMAGES, SERVER_MODEL
from fedloom.hooks.manifest import TEST_SETS
from fedloom.machine.extras import require_extra
from fedloom.planning import paths, provenance
from fedloom.planning.run_labels import Run
from fedloom.report.metrics import columns_of, percent

if TYPE_CHECKING:
    import duckdb

TIDY_COLUMNS = {
    "title": "the method's name in tables and figures",
    "method": "the method's label in the study",
    "options": "its options as JSON, with those that trials chose, and its wrappers' options",
    "learning_rate": "learning rate in the first round; missing if the method trains nothing",
    "dataset": "label of the data set",
    "partition": "label of the partition, which divides the images among clients",
    "backbone": "label of the backbone",
    "seed": "seed of the run, and of its partition unless the study fixes another",
    "round": "number of the round after which clients were evaluated, counted from 1",
    "client": f"number of the client; {SERVER_MODEL} is the server's model",
    "domain": "domain of the client's images; empty for the server's model",
    "group": "which clients were tested, and on which images. `participating`: clients that train; "
    "`held_out`: clients that never train; `participating_before` and `held_out_before`: the same "
    "clients before the hook `personalize`, if the method has it; `global`: the server's model on "
    "all test images. Only if the study tests unseen classes or datasets, for clients that train: "
    "`base`: all test images of the classes that clients train on; `novel`: those of classes that "
    "no client trains on; `dataset <label>`: those of another dataset",
    "split": "`test`; for a tuning trial `validation`, the training images that clients held back",
    "correct": "number of images classified correctly",
    "total": "number of images",
    "accuracy": "100 * correct / total, in percent",
    "loss": "mean cross-entropy of the images, in nats",
}
# the columns that are labels of a run
RUN_COLUMNS = ("title", "method", "options", "dataset", "partition", "backbone", "split")
CLIENT_GROUPS = ("participating", "held_out", "participating_before", "held_out_before", "global")
# the names that columns have in runs' files, if they differ
RENAMED_COLUMNS = {"client": "client_id", "correct": "num_correct", "total": "num_test"}
# the columns that are read from runs' files
READ = ("round", "client_id", "domain", "participating", "personalized")
READ += ("num_correct", "num_test", "loss", "test_set")
SELECTED = [f'"{RENAMED_COLUMNS.get(name, name)}" as "{name}"' for name in TIDY_COLUMNS]
SQL = f"""
select {", ".join(SELECTED)} from (select *,
  100.0 * num_correct / num_test as accuracy,
  coalesce(test_set, case when client_id = {SERVER_MODEL} then 'global' else
    case when participating then 'participating' else 'held_out' end ||
    case when personalized or not personalises then '' else '_before' end
  end) as "group"
from evaluations join runs using (filename)
  join (select filename, bool_or(personalized) as personalises from evaluations group by filename)
  using (filename)
where round <= rounds and test_set is distinct from '{OWN_IMAGES}')
"""


def with_files(record: pa.Table, folder: Path, trials: bool) -> pd.DataFrame:
    """Return a study's runs, or its tuning trials, with the path of their evaluations, `filename`.

    A run that was also tested on unseen classes or datasets has a second row, with the path of
    these results. Labels are categories in the order of the study.

    Args:
        record: the study's record.
        folder: the folder that holds `results`.
        trials: whether to return the tuning trials.

    Raises:
        FedLoomError: there are no trials; or another study has since made a run with the same
            labels, but from other settings or data.
    """
    # the runs, or the trials
    study = record.schema.metadata[b"study"].decode()
    runs = record.to_pandas().astype({"seed": "int32", "learning_rate": float})
    runs = runs[(runs["split"] == "validation") == trials].reset_index(drop=True)
    # a record always has runs
    if runs.empty:
        raise FedLoomError(f"study '{study}' must have tuning trials, got none; set study.tune")

    # the runs must be those that the study recorded
    every = [Run(*each) for each in runs[[*Run.__dataclass_fields__]].itertuples(index=False)]
    made_by = runs[list(provenance.MADE_BY)].to_dict("records")
    for run, digests in zip(every, made_by, strict=True):
        if provenance.facts_of_run(run, folder) != digests:
            raise FedLoomError(
                f"{run.path}: made again with other settings or data than those of study "
                f"'{study}'; run the study again"
            )

    # their files, and labels as categories
    runs["filename"] = [str(folder / paths.path_for(paths.EVALUATION, run)) for run in every]
    for label in RUN_COLUMNS:
        runs[label] = pd.Categorical(runs[label], runs[label].unique())

    # add a row for each run with other test sets
    tested = [folder / paths.path_for(paths.ARTEFACT, run, artefact=TEST_SETS) for run in every]
    others = runs.assign(filename=list(map(str, tested)))[runs[TEST_SETS]]
    return pd.concat([runs, others])


def tidy_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run, evaluated round, client and group, with the columns of TIDY_COLUMNS."""
    # the rows of all files, with the number of their run
    tables = []
    for position, file in enumerate(runs["filename"]):
        table = read_table(Path(file), columns_of(file))
        # a file without this column has results on clients' own images alone
        if "test_set" not in table.column_names:
            table = table.append_column("test_set", pa.nulls(len(table), pa.string()))
        tables.append(table.select(READ).append_column("run", [np.full(len(table), position)]))
    rows = pa.concat_tables(tables).to_pandas(categories=["domain", "test_set"])

    # a second file of a run repeats the results on clients' own images
    rows = rows[rows["test_set"] != OWN_IMAGES].reset_index(drop=True)

    # the group of each row
    before = ~rows["personalized"] & rows.groupby("run")["personalized"].transform("any")
    names = np.where(rows["participating"], CLIENT_GROUPS[0], CLIENT_GROUPS[1]) + np.where(
        before, "_before", ""
    )
    names = np.where(rows["client_id"] == SERVER_MODEL, "global", names)
    names = np.where(rows["test_set"].isna(), names, rows["test_set"])
    rows["group"] = pd.Categorical(names, [*CLIENT_GROUPS, *rows["test_set"].dropna().unique()])

    # the columns of the runs beside those of the evaluations
    rows["accuracy"] = percent(rows)
    rows = pd.concat([rows, runs.iloc[rows["run"]].reset_index(drop=True)], axis=1)

    # another study may have trained the run on for more rounds
    rows = rows[rows["round"] <= rows["rounds"]]

    columns = [RENAMED_COLUMNS.get(name, name) for name in TIDY_COLUMNS]
    return rows[columns].set_axis(list(TIDY_COLUMNS), axis=1).reset_index(drop=True)


def relation(runs: pd.DataFrame) -> "duckdb.DuckDBPyRelation":
    """Return the rows of `tidy_frame` as a relation of DuckDB.

    DuckDB reads the files when the relation is queried.
    """
    require_extra("duckdb")
    import duckdb

    connection = duckdb.connect()
    connection.register("runs", runs)

    # verify the files here, because DuckDB does not
    names = [*runs["filename"]]
    for name in names:
        check_table(Path(name), columns_of(name))

    files = connection.read_parquet(names, filename=True, union_by_name=True)
    if "test_set" not in files.columns:
        files = files.project("*, null::varchar as test_set")
    files.select(*READ, "filename").create_view("evaluations")
    return connection.sql(SQL)
