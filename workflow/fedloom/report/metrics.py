"""Read the numbers of runs from their Parquet files, and the positions of runs in a grid."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from fedloom.common.files import read_table, write_table
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.receipts import read_receipt
from fedloom.common.run_tables import RUN_SCHEMAS
from fedloom.config import grids
from fedloom.config.settings import GridMember, ReportedRounds
from fedloom.planning.run_labels import Run
from fedloom.report.plotted_runs import PlottedRun

# the metrics of single domains begin with this; the name of the domain follows
DOMAIN_PREFIX = "domain_"
# groups of clients, and whether they train
IS_PARTICIPATING = {"participating": True, "held_out": False}
SCENARIO = ("dataset", "partition", "backbone")
# relative rounding error of a loss in float32; a loss that is lower by less counts as guessing
ROUNDING = 1e-6


def frame(path: Path, columns: pa.Schema | None = None) -> pd.DataFrame:
    """Read a Parquet file of FedLoom as a data frame; raise a FedLoomError if it lacks `columns`.

    If the file has the name of a run's table, the columns of that table are the default.
    """
    return read_table(path, columns or columns_of(path)).to_pandas()


def columns_of(path: str | Path) -> pa.Schema | None:
    """Return the columns of the run's or job's table with this file name; None for other files."""
    return RUN_SCHEMAS.get(Path(path).stem.split(".")[-1])


def evaluation(path: Path, personalized: bool = True) -> pd.DataFrame:
    """Read an evaluation.parquet; return one row per round and client.

    The row is that after personalisation, if the method has the hook; or, if `personalized` is
    False, that before it.
    """
    rows = frame(path)
    if personalized:
        return personal(rows)
    return rows[~rows["personalized"]]


def personal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per round and client: the personalised one, if the client has two."""
    ordered = rows.sort_values("personalized", kind="stable")
    return ordered.drop_duplicates(["round", "client_id"], keep="last").sort_index()


def artefact(run: PlottedRun, columns: pa.Schema | None = None) -> pd.DataFrame:
    """Read the artefact of a run; raise a FedLoomError if it lacks `columns`."""
    assert run.artefact is not None, "the kind names no artefact"
    return read_table(run.artefact, columns).to_pandas()


def by_test_set(run: PlottedRun) -> dict[str, float]:
    """Return the mean accuracy in percent over clients on each test set of fedloom.common.ids."""
    assert run.artefact is not None, "the kind names no artefact"
    rows = frame(run.artefact, RUN_SCHEMAS["test_sets"])
    means = percent(rows).groupby(rows["test_set"], sort=False).mean()
    return {str(name): float(mean) for name, mean in means.items()}


def class_names(run: PlottedRun) -> list[str]:
    """Return the names of the classes of a run's dataset."""
    return [str(name) for name in read_receipt(run.store)["classes"]]


def grouped(
    series: Sequence[PlottedRun], keys: Sequence[str] = SCENARIO
) -> dict[tuple[str, ...], list[PlottedRun]]:
    """Group runs by the labels `keys`; groups and runs keep their order."""
    groups: dict[tuple[str, ...], list[PlottedRun]] = {}
    for run in series:
        groups.setdefault(tuple(getattr(run, key) for key in keys), []).append(run)
    return groups


def over_seeds(
    runs: Sequence[PlottedRun], curve: Callable[[PlottedRun], pd.Series]
) -> pd.DataFrame:
    """Return the `mean` and the sample standard deviation `std` of several runs' curves, by index.

    `std` is NaN if there is only one run.
    """
    return pd.concat([curve(run) for run in runs]).groupby(level=0, sort=False).agg(["mean", "std"])


def join(parts: Sequence[Path], out: Path, run: Run, metadata: dict[str, str]) -> None:
    """Join the tables of a run's jobs into one Parquet file.

    The labels of the run are its first columns, and the file has the `metadata`. A column that only
    some of the jobs have is null in the rows of the others.
    """
    tables = [read_table(part, columns_of(part)) for part in parts]
    table = pa.concat_tables(tables, promote_options="default")

    # the labels of the run as first columns
    for position, (name, value) in enumerate(vars(run).items()):
        arrow_type = pa.dictionary(pa.int32(), pa.string())
        if name == "seed":
            arrow_type = pa.int32()
        table = table.add_column(position, name, pa.array([value] * len(table), arrow_type))
    write_table(out, table.replace_schema_metadata(metadata))


def loss_not_below_guessing(rounds: pd.DataFrame) -> bool:
    """Return True if the median loss of the last half of the rounds is not below that of guessing.

    `rounds` has a row per round, with `train_loss` and `guessing_loss`.
    """
    last = rounds.sort_values("round").tail((len(rounds) + 1) // 2)
    return bool(last["train_loss"].median() >= last["guessing_loss"].iloc[0] * (1 - ROUNDING))


def accuracies(evaluation: pd.DataFrame, reported: ReportedRounds) -> dict[str, float]:
    """Return the mean of each column of `curves` over the reported rounds, in percent.

    - A group without rows is left out.
    - If `reported.worst_of` names rounds, the worst of a group is the lowest of its means over
      clients in these rounds (PEP-FedPT, footnote 4).
    - If clients answered images with a trigger, `backdoor_rate` is the mean over participating
      clients.
    """
    every = curves(evaluation)
    numbers = every[every.index.isin(reported.rounds)].mean()
    if reported.worst_of:
        lowest = every[every.index.isin(reported.worst_of)].min()
        for group in IS_PARTICIPATING:
            numbers[f"{group}_worst"] = lowest[f"{group}_mean"]

    if "backdoor_rate" in evaluation:
        rows = evaluation[evaluation["participating"] & evaluation["round"].isin(reported.rounds)]
        numbers["backdoor_rate"] = (100 * rows.groupby("round")["backdoor_rate"].mean()).mean()

    return {str(name): float(value) for name, value in numbers.dropna().items()}


def curves(evaluation: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies in percent by evaluated round; NaN for a group without rows.

    `<group>_mean` and `<group>_worst` are the unweighted mean and the minimum over the clients of a
    group, which is `participating` or `held_out` (PEP-FedPT, Section 5). `global` is the accuracy
    on all test images.
    """
    server = evaluation["client_id"] == SERVER_MODEL
    parts = dict[str, pd.Series]()
    for name, participating in IS_PARTICIPATING.items():
        rows = evaluation[~server & (evaluation["participating"] == participating)]
        parts[f"{name}_mean"] = by_round(rows)
        parts[f"{name}_worst"] = percent(rows).groupby(rows["round"]).min()
    return pd.DataFrame(parts | {"global": by_round(evaluation[server])})


def percent(rows: pd.DataFrame) -> pd.Series:
    """Return the accuracy in percent of every row of evaluation.parquet."""
    return 100 * rows["num_correct"] / rows["num_test"]


def by_round(rows: pd.DataFrame) -> pd.Series:
    """Return the mean over rows of evaluation.parquet of their accuracy in percent, by round."""
    return percent(rows).groupby(rows["round"]).mean()


def pooled(evaluation: pd.DataFrame, reported: ReportedRounds) -> float:
    """Return the accuracy in percent on the test images of all participating clients together.

    It is the mean over the reported rounds.
    """
    chosen = evaluation["round"].isin(reported.rounds) & evaluation["participating"]
    total = evaluation[chosen].groupby("round")[["num_correct", "num_test"]].sum()
    return float(percent(total).mean())


def member(run: PlottedRun) -> GridMember:
    """Return the position of a run in its grid."""
    assert run.member is not None, "the kind shows a grid, and the run belongs to none"
    return run.member


def axis_values(run: PlottedRun) -> dict[str, str]:
    """Return a run's value on every axis of its grid, as text."""
    return {axis: grids.value_text(value) for axis, value in member(run).at.items()}


def axis_title(run: PlottedRun, axis: str) -> str:
    """Return the title of an axis of a run's grid."""
    return member(run).axis_titles.get(axis, axis)


def accuracy_by_member(series: Sequence[PlottedRun]) -> pd.DataFrame:
    """Return a row per member of a grid, with its value on every axis.

    `accuracy` and `std` are the mean and the standard deviation over seeds of the mean accuracy
    over participating clients, in percent.
    """
    records = []
    for run in series:
        mean = accuracies(evaluation(run.evaluation), run.reported)["participating_mean"]
        records.append(axis_values(run) | {"accuracy": mean})
    grouped = pd.DataFrame(records).groupby(list(member(series[0]).at), sort=False)["accuracy"]
    return grouped.agg(["mean", "std"]).rename(columns={"mean": "accuracy"}).reset_index()
