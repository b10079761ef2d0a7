"""Summarise the numbers of runs as one row per method: mean and deviation over seeds."""

from dataclasses import replace

import pandas as pd

from fedloom.report.metrics import SCENARIO
from fedloom.study.plot_inputs import PlottedRun

GROUP: list[str] = list(SCENARIO)
LABELS = [*GROUP, "method", "title", "trains"]  # of a row; trains: what clients train
SUFFIXES = (
    "_std", "_above", "_published", "_published_std", "_published_above", "_published_below",
    "_published_verdict",
)  # fmt: skip


def over_partitions(runs: list[PlottedRun], measured: list[dict]) -> tuple[list, list[dict]]:
    """Return runs as if they had one partition, and their metrics, those that all have last."""
    label = ", ".join(dict.fromkeys(run.partition for run in runs))
    shared = set.intersection(*map(set, measured))
    first = dict.fromkeys((k for each in measured for k in each if k not in shared), float("nan"))
    return [replace(run, partition=label) for run in runs], [first | each for each in measured]


def summarise(runs: list[PlottedRun], measured: list[dict]) -> pd.DataFrame:
    """Return one row per scenario and method, in the order of `runs`.

    Columns are LABELS, `seeds`, and for every metric its mean and `<metric>_std` over seeds (sample
    standard deviation; missing for one seed), after the mean over runs of one seed. If the number
    of any seed is a bound, `<metric>_above` is true: the mean is a bound too, and has no deviation.

    Args:
        measured: metrics of each run. `<metric>_above`, a bool, says that the number is only a
            lower bound ("> 20 rounds").
    """
    records = [
        {key: getattr(run, key) for key in LABELS[:-1]} | {"trains": run.trains} | numbers
        for run, numbers in zip(runs, measured, strict=True)
    ]
    frame = pd.DataFrame(records)
    names, seeds = metrics(frame), pd.Series([run.seed for run in runs], name="seed")
    grouped, of_seeds = (frame.groupby(keys, sort=False) for keys in (LABELS, [*LABELS, seeds]))
    result = of_seeds.size().groupby(LABELS, sort=False).size().rename("seeds").to_frame()
    for name in names:
        means = of_seeds[name].mean().groupby(LABELS, sort=False)
        result[name], result[f"{name}_std"] = means.mean(), means.std()
        if f"{name}_above" in frame:
            above = grouped[f"{name}_above"].any()
            result[f"{name}_above"] = above
            result.loc[above, f"{name}_std"] = float("nan")
    return result.reset_index()


def varied(frame: pd.DataFrame, keys: list[str] = GROUP) -> list[str]:
    """Return those of some labels in which rows differ."""
    return [key for key in keys if frame[key].nunique() > 1]


def metrics(frame: pd.DataFrame) -> list[str]:
    """List the columns that hold numbers of runs."""

    def belongs(name: str) -> bool:  # to a metric; a domain's name may end like such a column
        return any(name.endswith(end) and name.removesuffix(end) in frame for end in SUFFIXES)

    names = [name for name in map(str, frame) if name not in (*LABELS, "seeds")]
    return [name for name in names if not belongs(name)]
