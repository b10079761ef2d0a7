"""Summarise the numbers of runs as one row per method: mean and deviation over seeds."""

from dataclasses import replace

import pandas as pd

from fedloom.report.metrics import SCENARIO
from fedloom.report.plotted_runs import PlottedRun

SCENARIO_COLUMNS: list[str] = list(SCENARIO)
# the columns that label a row; `trains` says what clients train
LABEL_COLUMNS = [*SCENARIO_COLUMNS, "method", "title", "trains"]


def over_partitions(runs: list[PlottedRun], measured: list[dict]) -> tuple[list, list[dict]]:
    """Give all runs one common partition label; return the runs and their metrics.

    Metrics that only some runs have come first, and are NaN for the other runs.
    """
    label = ", ".join(dict.fromkeys(run.partition for run in runs))
    renamed = [replace(run, partition=label) for run in runs]

    # metrics that some runs lack are NaN there
    shared = set.intersection(*map(set, measured))
    first: dict[str, float] = {}
    for each in measured:
        first |= dict.fromkeys([name for name in each if name not in shared], float("nan"))
    return renamed, [first | each for each in measured]


def summarise(runs: list[PlottedRun], measured: list[dict]) -> pd.DataFrame:
    """Return one row per scenario and method, in the order of `runs`.

    Columns are LABEL_COLUMNS, `seeds`, and for every metric its mean and `<metric>_std` over seeds
    (sample standard deviation; missing for one seed), after the mean over runs of one seed. The
    number of a seed may be only a lower bound ("> 20 rounds"). Then the mean is a bound too, has no
    deviation, and the bool `<metric>_above` is true.
    """
    records = [
        {key: getattr(run, key) for key in [*LABEL_COLUMNS, "seed"]} | numbers
        for run, numbers in zip(runs, measured, strict=True)
    ]
    frame = pd.DataFrame(records)

    # the mean over runs of a seed, then mean and deviation over seeds
    by_row = frame.groupby(LABEL_COLUMNS, sort=False)
    by_row_and_seed = frame.groupby([*LABEL_COLUMNS, "seed"], sort=False)
    result = by_row["seed"].nunique().rename("seeds").to_frame()
    for name in map(str, frame.columns[len(LABEL_COLUMNS) + 1 :]):
        if name.endswith("_above") and name.removesuffix("_above") in frame:
            continue
        means = by_row_and_seed[name].mean().groupby(LABEL_COLUMNS, sort=False)
        result[name] = means.mean()
        result[f"{name}_std"] = means.std()

        # the mean of bounds is a bound without a deviation
        if f"{name}_above" in frame:
            above = by_row[f"{name}_above"].any()
            result[f"{name}_above"] = above
            result.loc[above, f"{name}_std"] = float("nan")
    return result.reset_index()


def differing_columns(frame: pd.DataFrame, keys: list[str] = SCENARIO_COLUMNS) -> list[str]:
    """Return the labels in which rows differ."""
    return [key for key in keys if frame[key].nunique() > 1]


def metrics(frame: pd.DataFrame) -> list[str]:
    """List the columns of a summary that hold measured numbers, without the paper's numbers."""
    measured = [name for name in map(str, frame) if f"{name}_std" in frame]
    return [name for name in measured if f"{name}_verdict" not in frame]
