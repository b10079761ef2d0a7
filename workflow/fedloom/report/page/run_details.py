"""Collect the runs behind a report's numbers: settings, trials, curves, logs and files."""

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedloom.common.files import read_table
from fedloom.common.json_types import JsonDict
from fedloom.common.run_tables import TRIALS_SCHEMA
from fedloom.config.grids import describe_options
from fedloom.planning import paths
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.report import metrics
from fedloom.report.plotted_runs import PlottedRun, plotted_runs
from fedloom.report.run_settings import Setting, run_settings

ROW = (*metrics.SCENARIO, "method")
# number of lines at the end of a log that are shown
LAST_LINES = 6
LOSS = "loss"
# the curves of `metrics.curves` and that of the loss, with their titles
PLOTTED_CURVES = {
    "participating_mean": "Test accuracy of participating clients in %",
    "held_out_mean": "Test accuracy of held-out clients in %",
    "global": "Accuracy on all test images in %",
    LOSS: "Training loss",
}


@dataclass(frozen=True)
class Shown:
    """A run with its curves, accuracies, logs and files, as the report shows them."""

    run: PlottedRun
    # its curves by their names in PLOTTED_CURVES, each a series by round
    curves: dict[str, pd.Series]
    # in percent, at the reported rounds
    accuracies: dict[str, float]
    # the last lines of its training jobs' logs
    logs: dict[Path, list[str]]
    files: list[Path]


@dataclass(frozen=True)
class RunGroup:
    """The runs of a method in a scenario; they differ only in their seeds."""

    # its anchor in the page
    id: str
    # its dataset, partition and backbone
    place: str
    # the labels in ROW; for a member of a grid, also its value on every axis
    labels: dict[str, str]
    # the run of the first seed
    first: PlottedRun
    runs: list[Shown]
    # all settings of the runs, including chosen options
    settings: dict[str, Setting]
    # rows of trials.parquet, from which options were chosen
    trials: list[JsonDict]


def run_groups(plan: Plan) -> list[RunGroup]:
    """Return the runs of a study's tables and figures, in the order of the config."""
    # the runs that tables and figures show, each once
    select = plan.settings.select
    tables = [plan.table_job(label) for label in select.tables]
    figures = [plan.figure_job(label) for label in select.figures]
    shown = dict[Run, PlottedRun]()
    for job in (*tables, *figures):
        if job.shown:
            shown |= {Run.from_labels(run): run for run in plotted_runs(job.shown)}

    # one group per label, with a run per seed
    found = []
    for labels, runs in metrics.grouped([shown[run] for run in plan.runs], ROW).items():
        first = runs[0]
        own: dict[str, str] = {key: label for key, label in zip(ROW, labels, strict=True)}
        if first.member:
            own |= metrics.axis_values(first)
        group = RunGroup(
            id=f"runs/{'/'.join(labels)}",
            place="/".join(labels[:-1]),
            labels=own,
            first=first,
            runs=[_shown(plan, run) for run in runs],
            settings=dict(run_settings(plan, Run.from_labels(first))),
            trials=_trials(plan, first),
        )
        found.append(group)
    return found


def _shown(plan: Plan, run: PlottedRun) -> Shown:
    """Return a run with its curves, the ends of its logs, and the paths of its files."""
    # the curves that have numbers, in the order of PLOTTED_CURVES
    rows = metrics.evaluation(run.evaluation)
    loss = metrics.frame(run.rounds).set_index("round")["train_loss"]
    every = {**metrics.curves(rows), LOSS: loss}
    curves = {name: every[name].dropna() for name in PLOTTED_CURVES}
    curves = {name: curve for name, curve in curves.items() if len(curve)}

    # the end of the log of each training job
    logs = {}
    for log in map(Path, plan.job_files(run, paths.log_path("train", paths.STATE))):
        if log.is_file():
            logs[log] = log.read_text(errors="replace").splitlines()[-LAST_LINES:]

    files = [paths.path_for(paths.RUN_TABLES[name], run) for name in plan.run_tables]
    return Shown(
        run=run,
        curves=curves,
        accuracies=metrics.accuracies(rows, run.reported),
        logs=logs,
        files=[*files, *map(Path, plan.job_files(run, paths.STATE))],
    )


def _trials(plan: Plan, run: PlottedRun) -> list[JsonDict]:
    """Return the trials from which the options of a run were chosen; [] if none were chosen."""
    if not plan.choice_file(run):
        return []

    # options are JSON in the file, and text in the report
    file = paths.path_for(paths.TRIALS, run)
    trials = read_table(file, TRIALS_SCHEMA).to_pylist()
    for row in trials:
        row["options"] = ", ".join(describe_options(json.loads(row["options"])))
    return trials


def among(groups: Iterable[RunGroup], runs: Iterable[Run]) -> list[RunGroup]:
    """Return the groups to which some of the runs belong."""
    rows = {tuple(getattr(run, key) for key in ROW) for run in runs}
    return [group for group in groups if tuple(group.labels[key] for key in ROW) in rows]


def find_group(groups: Iterable[RunGroup], row: Mapping[Hashable, object]) -> RunGroup | None:
    """Return the group that a table's row shows; None if it shows several groups, or none."""
    found = []
    for group in groups:
        labels = {key: value for key, value in group.labels.items() if key in row}
        if all(str(row[key]) == value for key, value in labels.items()):
            found.append(group)

    if len(found) == 1:
        return found[0]
    return None
