"""The runs of a table or figure, one by one, with the files that they are read from."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fedloom.common.receipts import receipt_of
from fedloom.config import grids
from fedloom.config.output_kinds import OutputKind
from fedloom.config.rounds import Reported
from fedloom.config.settings import GridMember
from fedloom.study import jobs, paths
from fedloom.study.runs import Run


@dataclass(frozen=True)
class LineStyle:
    """Colour, line and marker of a method in one figure."""

    colour: str
    line: int
    marker: str


@dataclass(frozen=True)
class ShownRun(Run):
    """A run in a table or figure, with its files."""

    title: str
    look: dict[str, str]  # colour and marker that the plugin asks for
    plugin: jobs.ShownPlugin
    reported: Reported  # the evaluated rounds that tables report
    evaluation: Path
    rounds: Path
    store: Path  # the dataset's images, whose receipt names the classes
    artefact: Path | None = None  # the method's table, if the kind is made of one
    member: GridMember | None = None  # its position, if its method is in a grid
    style: LineStyle = LineStyle("#000000", 0, "o")  # figures give their runs different ones


@dataclass(frozen=True)
class ShownBackbone:
    """A frozen backbone on a dataset in a figure, with its accuracy by block and its features."""

    dataset: str
    backbone: str
    accuracy: Path
    features: Path
    store: Path


def shown_runs(shown: jobs.Shown) -> list[ShownRun]:
    """List the runs that a table or figure shows."""
    items = []
    for scenario, shown_method, seed in product(shown.scenarios, _methods(shown), shown.seeds):
        method, member = shown_method
        dataset, partition, backbone = scenario.split("/")
        run = Run(dataset, partition, backbone, method.label, seed)
        rounds = shown.reported.get(f"{partition}/{run.method}", shown.reported[partition])
        own = shown.artefact
        items.append(
            ShownRun(
                **vars(run),
                title=method.title,
                look=method.look,
                plugin=method.plugin,
                reported=rounds,
                evaluation=paths.at(paths.EVALUATION, run),
                rounds=paths.at(paths.ROUNDS, run),
                store=paths.at(paths.STORE, run),
                artefact=paths.at(paths.ARTEFACT, run, artefact=own) if own else None,
                member=member,
            )
        )
    return items


def _methods(shown: jobs.Shown) -> Iterator[tuple[jobs.ShownMethod, GridMember | None]]:
    """Yield the methods of a table or figure; every member of a grid is one."""
    for item in shown.methods:
        if isinstance(item, jobs.ShownMethod):
            yield item, None
            continue
        members = grids.members(item.grid)
        for label, title, member in (members[position] for position in item.positions):
            yield jobs.ShownMethod(label, title, item.look, item.plugin), member


def shown_backbones(job: jobs.FigureJob) -> list[ShownBackbone]:
    """List the frozen backbones that a figure shows."""
    items = []
    for dataset, backbone in (pair.split("/") for pair in job.backbones):
        labels = {"dataset": dataset, "backbone": backbone}
        files = paths.inputs("block_accuracy", **labels)
        accuracy = paths.at(paths.BLOCK_ACCURACY, **labels)
        items.append(ShownBackbone(dataset, backbone, accuracy, files["features"], files["store"]))
    return items


def files(job: jobs.TableJob | jobs.FigureJob, kind: OutputKind) -> list[str]:
    """List the files that a table or figure is made of: of images and features the receipts."""
    found: list[Path] = []
    if job.shown is None:
        for item in shown_backbones(job):  # type: ignore[arg-type]
            large = receipt_of(item.features), receipt_of(item.store)
            found += [item.accuracy] if kind.reads == "accuracy" else large
        return [str(path) for path in found]
    if kind.shows == "datasets" or kind.reads == "names":
        datasets = dict.fromkeys(scenario.split("/")[0] for scenario in job.shown.scenarios)
        found += [paths.at(paths.receipt(paths.STORE), dataset=name) for name in datasets]
    for run in shown_runs(job.shown):
        found += [run.artefact] if run.artefact else [run.evaluation, run.rounds]
    if isinstance(job, jobs.TableJob) and job.tuned:
        found += [choice.trials for choice in choices(job.shown, job.tuned)]
    return [str(path) for path in found]


class ShownChoice(NamedTuple):
    """A method whose options were chosen, in a scenario; `trials` is the file of its trials."""

    scenario: str
    method: str
    title: str
    trials: Path


def choices(shown: jobs.Shown, tuned: jobs.Tuned) -> list[ShownChoice]:
    """List the choices that a table's runs depend on."""
    listed = []
    for scenario, (method, _) in product(shown.scenarios, _methods(shown)):
        if method.label in tuned.methods:
            dataset, partition, backbone = scenario.split("/")
            run = Run(dataset, partition, backbone, method.label, tuned.seed)
            file = paths.at(paths.TRIALS, run)
            listed.append(ShownChoice(scenario, method.label, method.title, file))
    return listed
