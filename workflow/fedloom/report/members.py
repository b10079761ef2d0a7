"""Runs that are members of a grid: where they lie in it, and how accurate they are."""

from typing import Any

import pandas as pd

from fedloom.config import grids
from fedloom.config.settings import GridMember
from fedloom.report import metrics
from fedloom.study.plot_inputs import ShownRun


def member(run: ShownRun) -> GridMember:
    """Return the position of a run in its grid."""
    assert run.member is not None, "the kind shows a grid, and the run is of none"
    return run.member


def values(run: ShownRun) -> dict[str, str]:
    """Return a run's value on every axis of its grid, as text."""
    return {axis: grids.text(value) for axis, value in member(run).at.items()}


def varied_lists(run: ShownRun) -> dict[str, list[Any]]:
    """Return the options of a run that are lists and that its grid varies entry by entry."""
    return grids.varied_lists(member(run))


def accuracies(series: list[ShownRun]) -> pd.DataFrame:
    """Return one row per member of a grid: its value on every axis, `accuracy` and `std`.

    `accuracy` is the mean over participating clients in percent at the reported rounds, mean over
    seeds, with the sample standard deviation (missing for one seed).
    """
    records = []
    for run in series:
        rows = metrics.evaluation(run.evaluation)
        mean = metrics.accuracies(rows, run.reported)["participating_mean"]
        records.append(values(run) | {"accuracy": mean})
    grouped = pd.DataFrame(records).groupby(list(member(series[0]).at), sort=False)["accuracy"]
    return grouped.agg(["mean", "std"]).rename(columns={"mean": "accuracy"}).reset_index()
