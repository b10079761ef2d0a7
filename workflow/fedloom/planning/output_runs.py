"""List the runs of a table or figure, with the files from which each is read."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fedloom.common.receipts import receipt_of
from fedloom.config import grids
from fedloom.config.settings import GridMember, KindSpec, Reported
from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob, PlotInputs, PlottedMethod, TableJob, Tuned
from fedloom.planning.run_labels import Run


@dataclass(frozen=True)
class LineStyle:
    """Colour, line and marker of a method in one figure."""

    colour: str
    line: int
    marker: str


@dataclass(frozen=True)
class PlottedRun(Run):
    """A run in a table or figure, with its files."""

    title: str
    # the colour and marker that the plugin asks for
    look: dict[str, str]
    # the evaluated rounds that tables report
    reported: Reported
    evaluation: Path
    rounds: Path
    # the dataset's images, whose receipt names the classes
    store: Path
    # the artefact, if the kind reads one
    artefact: Path | None = None
    # the member of a grid that its method is, if it is one
    member: GridMember | None = None
    # the next two fields are copied from job_specs.PlottedMethod
    trains: str = ""
    sees_held_out: bool = False
    # a figure gives each of its runs a style of its own
    style: LineStyle = LineStyle("#000000", 0, "o")


@dataclass(frozen=True)
class PlottedBackbone:
    """A frozen backbone on a dataset in a figure, with its accuracy by block and its features."""

    dataset: str
    backbone: str
    accuracy: Path
    features: Path
    store: Path


def plotted_runs(inputs: PlotInputs) -> list[PlottedRun]:
    """List the runs that a table or figure shows."""
    # a grid has a row for each member
    rows = list[tuple[PlottedMethod, str, str, GridMember | None]]()
    for method in inputs.methods:
        for label, title, member in _members(method):
            rows.append((method, label, title, member))

    items = []
    for scenario, row, seed in product(inputs.scenarios, rows, inputs.seeds):
        method, label, title, member = row
        dataset, partition, backbone = scenario.split("/")
        run = Run(dataset, partition, backbone, label, seed)

        # a method's own rounds come before those of the partition
        reported = inputs.reported.get(f"{partition}/{label}", inputs.reported[partition])

        artefact = None
        if inputs.artefact:
            artefact = paths.path_for(paths.ARTEFACT, run, artefact=inputs.artefact)

        item = PlottedRun(
            **vars(run),
            title=title,
            look=method.look,
            reported=reported,
            evaluation=paths.path_for(paths.EVALUATION, run),
            rounds=paths.path_for(paths.ROUNDS, run),
            store=paths.path_for(paths.STORE, run),
            artefact=artefact,
            member=member,
            trains=method.trains,
            sees_held_out=method.sees_held_out,
        )
        items.append(item)
    return items


def _members(method: PlottedMethod) -> list[tuple[str, str, GridMember | None]]:
    """Return label, title and grid member of a method, or of each member of a grid.

    A method that is not in a grid has None for its member.
    """
    if method.grid is None:
        return [(method.label, method.title, None)]
    members = grids.members(method.grid)
    return [members[position] for position in method.positions]


def plotted_backbones(job: FigureJob) -> list[PlottedBackbone]:
    """List the frozen backbones that a figure shows."""
    items = []
    for pair in job.backbones:
        dataset, backbone = pair.split("/")
        labels = {"dataset": dataset, "backbone": backbone}
        accuracy = paths.path_for(paths.BLOCK_ACCURACY, **labels)

        # its accuracy was computed from the store and the features
        read = paths.data_inputs("block_accuracy", **labels)
        item = PlottedBackbone(dataset, backbone, accuracy, read["features"], read["store"])
        items.append(item)
    return items


def files(job: TableJob | FigureJob, spec: KindSpec) -> list[str]:
    """List the files that a table or figure reads.

    The receipts of stores and features are listed in the place of these large files.
    """
    # a figure of frozen backbones: their accuracies by block, or their features
    found: list[Path] = []
    if job.shown is None:
        for item in plotted_backbones(job):  # type: ignore[arg-type]
            if spec.reads == "accuracy":
                found.append(item.accuracy)
            else:
                found += [receipt_of(item.features), receipt_of(item.store)]
        return [str(path) for path in found]

    # the names of classes are in the receipts of stores
    if spec.shows == "datasets" or spec.reads == "names":
        datasets = dict.fromkeys(scenario.split("/")[0] for scenario in job.shown.scenarios)
        found += [paths.path_for(paths.receipt(paths.STORE), dataset=name) for name in datasets]

    # the tables of runs, and the trials that a table's text tells of
    runs = plotted_runs(job.shown)
    for run in runs:
        found += [run.evaluation, run.rounds]
        if run.artefact:
            found.append(run.artefact)
    if isinstance(job, TableJob):
        found += [paths.path_for(paths.TRIALS, run) for run in tuned_runs(runs, job.tuned)]
    return [str(path) for path in found]


def tuned_runs(runs: list[PlottedRun], tuned: Tuned | None) -> list[PlottedRun]:
    """Return the first run of every scenario and method whose options were chosen from trials."""
    if tuned is None:
        return []
    return [run for run in runs if run.method in tuned.methods and run.seed == runs[0].seed]
