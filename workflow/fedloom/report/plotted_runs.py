"""Define the runs and frozen backbones that a table or figure shows, with their files and looks."""

from dataclasses import dataclass
from pathlib import Path

from fedloom.config.settings import GridMember, ReportedRounds
from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob, PlotInputs
from fedloom.planning.output_runs import backbone_labels, shown_runs
from fedloom.planning.run_labels import Run


@dataclass(frozen=True)
class LineStyle:
    """Colour, line, marker and hatch of a method in one figure."""

    colour: str
    line: int
    marker: str
    hatch: int = 0


@dataclass(frozen=True)
class PlottedRun(Run):
    """A run in a table or figure, with its files."""

    title: str
    # the colour and marker that the plugin asks for
    look: dict[str, str]
    # the evaluated rounds that tables report
    reported: ReportedRounds
    evaluation: Path
    rounds: Path
    # the counts of its answers, if the study has `confusion`
    confusion: Path
    calibration: Path
    # the dataset's images, whose receipt names the classes
    store: Path
    # the artefact, if the kind reads one
    artefact: Path | None = None
    # the member of a grid that its method is, if it is one
    member: GridMember | None = None
    # the next three fields are copied from job_specs.PlottedMethod
    trains: str = ""
    sees_held_out: bool = False
    other_loss: str = ""
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
    items = []
    for shown in shown_runs(inputs):
        run = shown.run
        method = shown.method

        # a method's own rounds come before those of the partition
        common = inputs.reported[run.partition]
        reported = inputs.reported.get(f"{run.partition}/{run.method}", common)

        artefact = None
        if inputs.artefact:
            artefact = paths.path_for(paths.ARTEFACT, run, artefact=inputs.artefact)

        item = PlottedRun(
            **vars(run),
            title=shown.title,
            look=method.look,
            reported=reported,
            evaluation=paths.path_for(paths.EVALUATION, run),
            rounds=paths.path_for(paths.ROUNDS, run),
            confusion=paths.path_for(paths.RUN_TABLES["confusion"], run),
            calibration=paths.path_for(paths.RUN_TABLES["calibration"], run),
            store=paths.path_for(paths.STORE, run),
            artefact=artefact,
            member=shown.member,
            trains=method.trains,
            sees_held_out=method.sees_held_out,
            other_loss=method.other_loss,
        )
        items.append(item)
    return items


def plotted_backbones(job: FigureJob) -> list[PlottedBackbone]:
    """List the frozen backbones that a figure shows."""
    items = []
    for pair in job.backbones:
        labels = backbone_labels(pair)
        accuracy = paths.path_for(paths.BLOCK_ACCURACY, **labels)

        # its accuracy was computed from the store and the features
        read = paths.data_inputs("block_accuracy", **labels)
        item = PlottedBackbone(
            **labels, accuracy=accuracy, features=read["features"], store=read["store"]
        )
        items.append(item)
    return items
