"""The runs of a table or figure, one by one, with the files that they are read from."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fedloom.config import grids
from fedloom.config.line_style import deal
from fedloom.config.output_kinds import OutputKind
from fedloom.config.rounds import Reported
from fedloom.config.settings import GridMember, Look
from fedloom.study import paths
from fedloom.study.jobs import (
    FigureJob,
    Shown,
    ShownGrid,
    ShownMethod,
    ShownPlugin,
    TableJob,
    Tuned,
)
from fedloom.study.runs import Run


@dataclass(frozen=True)
class ShownRun:
    """A run in a table or figure.

    Attributes:
        plugin: what its method.toml says of it.
        member: its position in a grid, if its method is of one.
        store: the dataset's images, whose receipt names the classes.
        reported: the evaluated rounds that tables report.
        evaluation, rounds: Parquet files of the run.
        artefact: the method's own table, if the kind is made of one.
    """

    dataset: str
    partition: str
    backbone: str
    method: str
    seed: int
    title: str
    look: Look
    plugin: ShownPlugin
    reported: Reported
    evaluation: Path
    rounds: Path
    store: Path
    artefact: Path | None = None
    member: GridMember | None = None


@dataclass(frozen=True)
class ShownBackbone:
    """A frozen backbone on a dataset in a figure.

    Attributes:
        accuracy: Parquet file of its accuracy by block.
        features: what it computes of every image.
        store: the dataset's images.
    """

    dataset: str
    backbone: str
    accuracy: Path
    features: Path
    store: Path


def shown_runs(shown: Shown) -> list[ShownRun]:
    """List the runs that a table or figure shows."""
    items = []
    for scenario, method, seed in product(shown.scenarios, _methods(shown), shown.seeds):
        label, title, look, plugin, member = method
        dataset, partition, backbone = scenario.split("/")
        run = Run(dataset, partition, backbone, label, seed)
        artefact = None
        if shown.artefact is not None:
            artefact = paths.at(paths.ARTEFACT, run, artefact=shown.artefact)
        items.append(
            ShownRun(
                **vars(run),
                title=title,
                look=look,
                reported=_reported(shown, partition, label),
                evaluation=paths.at(paths.EVALUATION, run),
                rounds=paths.at(paths.ROUNDS, run),
                plugin=plugin,
                store=paths.at(paths.STORE, run),
                artefact=artefact,
                member=member,
            )
        )
    return items


def _reported(shown: Shown, partition: str, method: str) -> Reported:
    """Return what tables report of a method's runs on a partition."""
    own = shown.reported.get(f"{partition}/{method}")
    return shown.reported[partition] if own is None else own


def _methods(
    shown: Shown,
) -> list[tuple[str, str, Look, ShownPlugin, GridMember | None]]:
    """List label, title, look and plugin of every method, members of grids one by one."""
    rows: list[tuple[str, str, GridMember | None]] = []
    items: list[ShownMethod | ShownGrid] = []
    for item in shown.methods:
        if isinstance(item, ShownMethod):
            rows.append((item.label, item.title, None))
        else:
            members = grids.members(item.grid)
            rows += [members[position] for position in item.positions]
        items += [item] * (len(rows) - len(items))
    looks = deal([item.look for item in items])
    return [
        (label, title, look, item.plugin, member)
        for (label, title, member), look, item in zip(rows, looks, items, strict=True)
    ]


def shown_backbones(job: FigureJob) -> list[ShownBackbone]:
    """List the frozen backbones that a figure shows."""
    items = []
    for dataset, backbone in (pair.split("/") for pair in job.backbones):
        labels = {"dataset": dataset, "backbone": backbone}
        accuracy = paths.at(paths.BLOCK_ACCURACY, **labels)
        features = paths.at(paths.CACHE, cache="features", **labels)
        store = paths.at(paths.STORE, dataset=dataset)
        items.append(ShownBackbone(dataset, backbone, accuracy, features, store))
    return items


def files(job: TableJob | FigureJob, kind: OutputKind) -> list[str]:
    """List the files that a table or figure is made of: of images and features the receipts."""
    if job.shown is None:
        return _of_backbones(job, kind)  # type: ignore[arg-type]
    found: list[Path] = []
    if kind.shows == "datasets" or kind.reads == "names":
        datasets = dict.fromkeys(scenario.split("/")[0] for scenario in job.shown.scenarios)
        found += [paths.at(paths.receipt(paths.STORE), dataset=name) for name in datasets]
    for run in shown_runs(job.shown):
        found += [run.artefact] if run.artefact else [run.evaluation, run.rounds]
    if isinstance(job, TableJob) and job.tuned:
        found += [choice.trials for choice in choices(job.shown, job.tuned)]
    return [str(path) for path in found]


def _of_backbones(job: FigureJob, kind: OutputKind) -> list[str]:
    """List the files of a figure of frozen backbones; of what is large, the receipts."""
    if kind.reads == "accuracy":
        return [str(item.accuracy) for item in shown_backbones(job)]
    large = [path for item in shown_backbones(job) for path in (item.features, item.store)]
    return [paths.receipt(str(path)) for path in large]


class ShownChoice(NamedTuple):
    """A method whose options were chosen, in a scenario; `trials` is the file of its trials."""

    scenario: str
    method: str
    title: str
    trials: Path


def choices(shown: Shown, tuned: Tuned) -> list[ShownChoice]:
    """List the choices that a table's runs rest on."""
    listed = []
    for scenario, (label, title, *_) in product(shown.scenarios, _methods(shown)):
        if label in tuned.methods:
            dataset, partition, backbone = scenario.split("/")
            labels = {"dataset": dataset, "partition": partition, "backbone": backbone}
            file = paths.at(paths.TRIALS, method=label, **labels)
            listed.append(ShownChoice(scenario, label, title, file))
    return listed
