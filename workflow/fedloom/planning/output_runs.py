"""List the runs of a table or figure, and the files that it reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

from fedloom.common.receipts import receipt_path
from fedloom.config import grids
from fedloom.config.settings import GridMember, KindSpec
from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob, PlotInputs, PlottedMethod, TableJob, Tuned
from fedloom.planning.run_labels import Run

AnyRun = TypeVar("AnyRun", bound=Run)


@dataclass(frozen=True)
class ShownRun:
    """A run that a table or figure shows."""

    run: Run
    # its method, or the grid that its method is a member of
    method: PlottedMethod
    title: str
    # the member of a grid that its method is, if it is one
    member: GridMember | None


def shown_runs(inputs: PlotInputs) -> list[ShownRun]:
    """List the runs that a table or figure shows."""
    # a grid has a row for each member
    rows = list[tuple[PlottedMethod, str, str, GridMember | None]]()
    for method in inputs.methods:
        for label, title, member in _members(method):
            rows.append((method, label, title, member))

    found = []
    for scenario, row, seed in product(inputs.scenarios, rows, inputs.seeds):
        method, label, title, member = row
        dataset, partition, backbone = scenario.split("/")
        run = Run(dataset, partition, backbone, label, seed)
        found.append(ShownRun(run, method, title, member))
    return found


def _members(method: PlottedMethod) -> list[tuple[str, str, GridMember | None]]:
    """Return label, title and grid member of a method, or of each member of a grid.

    A method that is not in a grid has None for its member.
    """
    if method.grid is None:
        return [(method.label, method.title, None)]
    members = grids.members(method.grid)
    return [members[position] for position in method.positions]


def backbone_labels(pair: str) -> dict[str, str]:
    """Return the labels in "dataset/backbone", which names a frozen backbone of a figure."""
    dataset, backbone = pair.split("/")
    return {"dataset": dataset, "backbone": backbone}


def output_files(job: TableJob | FigureJob, spec: KindSpec) -> list[Path]:
    """List the files that a table or figure reads.

    The receipts of stores and features are listed in the place of these large files.
    """
    if isinstance(job, FigureJob) and job.shown is None:
        return _backbone_files(job, spec)
    assert job.shown is not None

    # the names of classes are in the receipts of stores
    found: list[Path] = []
    if spec.shows == "datasets" or spec.reads == "names":
        datasets = dict.fromkeys(scenario.split("/")[0] for scenario in job.shown.scenarios)
        found += [paths.path_for(paths.receipt(paths.STORE), dataset=name) for name in datasets]

    # the tables of runs
    runs = [shown.run for shown in shown_runs(job.shown)]
    for run in runs:
        found += [paths.path_for(paths.EVALUATION, run), paths.path_for(paths.ROUNDS, run)]
        found += [paths.path_for(paths.RUN_TABLES[name], run) for name in spec.run_tables]
        if job.shown.artefact:
            found.append(paths.path_for(paths.ARTEFACT, run, artefact=job.shown.artefact))

    # the trials that a table's text tells of
    if isinstance(job, TableJob):
        found += [paths.path_for(paths.TRIALS, run) for run in tuned_runs(runs, job.tuned)]
    return found


def _backbone_files(job: FigureJob, spec: KindSpec) -> list[Path]:
    """List the files that a figure of frozen backbones reads: accuracies by block, or features."""
    found: list[Path] = []
    for pair in job.backbones:
        labels = backbone_labels(pair)
        if spec.reads == "accuracy":
            found.append(paths.path_for(paths.BLOCK_ACCURACY, **labels))
        else:
            read = paths.data_inputs("block_accuracy", **labels)
            found += [receipt_path(read["features"]), receipt_path(read["store"])]
    return found


def tuned_runs(runs: Sequence[AnyRun], tuned: Tuned | None) -> list[AnyRun]:
    """Return the first run of every scenario and method whose options were chosen from trials."""
    if tuned is None:
        return []
    return [run for run in runs if run.method in tuned.methods and run.seed == runs[0].seed]
