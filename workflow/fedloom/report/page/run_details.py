"""Collect the runs behind a report's numbers: settings, trials, curves, logs and files."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace as Wildcards
from typing import Any

import pandas as pd

from fedloom.common.files import read_table
from fedloom.common.run_tables import TRIALS
from fedloom.config import grids
from fedloom.planning import paths
from fedloom.planning.output_runs import PlottedRun, plotted_runs
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.report import metrics
from fedloom.report.run_settings import Setting, settings_of

ROW = (*metrics.SCENARIO, "method")
LAST_LINES = 6  # of a log
LOSS = "loss"
CURVES = {  # `metrics.curves` and the loss, with what they show
    "participating_mean": "Test accuracy of participating clients in %",
    "held_out_mean": "Test accuracy of held-out clients in %",
    "global": "Accuracy on all test images in %",
    LOSS: "Training loss",
}


@dataclass(frozen=True)
class Shown:
    """A run with its curves, accuracies, logs and files, as the report shows them."""

    run: PlottedRun
    curves: dict[str, pd.Series]  # those of CURVES that it has, by round
    accuracies: dict[str, float]  # in percent, at the reported rounds
    logs: dict[Path, list[str]]  # of its training jobs, with their last lines
    files: list[Path]


@dataclass(frozen=True)
class Group:
    """The runs of a method in a scenario, which differ in their seeds alone."""

    id: str  # its anchor in the page
    place: str  # dataset, partition and backbone
    labels: dict[str, str]  # those of ROW; of a member of a grid also its value on every axis
    first: PlottedRun  # of the first seed
    runs: list[Shown]
    settings: dict[str, Setting]  # with the chosen options
    trials: list[dict[str, Any]]  # from which options were chosen: rows of trials.parquet


def groups(plan: Plan) -> list[Group]:
    """Return the runs of a study's tables and figures, in the order of the config."""
    select = plan.settings.select
    shown = dict[Run, PlottedRun]()
    for rule, labels in (("table", select.tables), ("figure", select.figures)):
        for inputs in (plan.job(rule, Wildcards(label=label)).shown for label in labels):
            shown |= {Run.of(run): run for run in (plotted_runs(inputs) if inputs else [])}

    # one group per label, with a run per seed
    of_study = metrics.grouped([shown[run] for run in plan.runs], ROW)
    return [
        Group(
            f"runs/{'/'.join(labels)}",
            "/".join(labels[:-1]),
            dict(zip(ROW, labels, strict=True)) | (metrics.axis_values(run) if run.member else {}),
            run,
            [_shown(plan, each) for each in (run, *others)],
            dict(settings_of(plan, Run.of(run))),
            _trials(plan, run),
        )
        for labels, (run, *others) in of_study.items()
    ]


def _shown(plan: Plan, run: PlottedRun) -> Shown:
    """Return a run with its curves, the ends of its logs, and the paths of its files."""
    rows = metrics.evaluation(run.evaluation)
    loss = metrics.frame(run.rounds).set_index("round")["train_loss"]
    every = {**metrics.curves(rows), LOSS: loss}
    logs = {
        log: log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        for log in map(Path, plan.job_files(run, paths.log("train", paths.STATE)))
        if log.is_file()
    }

    files = [paths.path_for(paths.RUN_TABLES[name], run) for name in plan.run_tables]
    return Shown(
        run,
        {name: curve for name in CURVES if len(curve := every[name].dropna())},
        metrics.accuracies(rows, run.reported),
        logs,
        [*files, *map(Path, plan.job_files(run, paths.STATE))],
    )


def _trials(plan: Plan, run: PlottedRun) -> list[dict[str, Any]]:
    """Return the trials from which options of a run were chosen; none if it has no choice."""
    file = paths.path_for(paths.TRIALS, run)
    trials = read_table(file, TRIALS).to_pylist() if plan.choice(run) else []
    for row in trials:
        options = json.loads(row["options"]).items()
        texts = [f"{name.removeprefix(grids.TRAINING)} {grids.text(v)}" for name, v in options]
        row["options"] = ", ".join(texts)
    return trials


def among(groups: Iterable[Group], runs: Iterable[Run]) -> list[Group]:
    """Return those of the groups that some runs belong to."""
    rows = {tuple(getattr(run, key) for key in ROW) for run in runs}
    return [group for group in groups if tuple(group.labels[key] for key in ROW) in rows]


def of_row(groups: Iterable[Group], row: Mapping[Any, Any]) -> Group | None:
    """Return the group that a table's row is about; None if it is about several, or about none."""
    found = [
        group
        for group in groups
        if all(str(row[key]) == value for key, value in group.labels.items() if key in row)
    ]
    return found[0] if len(found) == 1 else None
