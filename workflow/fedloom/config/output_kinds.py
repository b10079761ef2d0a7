"""Declare the keys that kinds of tables and figures have in common."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Keys, Several
from fedloom.config.reading import read
from fedloom.config.settings import KindSpec, OutputEntry, OutputKind
from fedloom.machine.install import resource

SHOWN = "Labels of the methods to show. Default: all of `select.methods`."
Methods = Annotated[Several[str] | None, Field(description=SHOWN)]
AFTER = (
    "Whether to show the accuracy after the hook `personalize`, for methods that have it. With "
    "false, the accuracy before the hook is shown."
)
Personalized = Annotated[bool, Field(description=AFTER)]
# mean or minimum over participating or held-out clients, or the accuracy on all test images
AccuracyMetric = Literal[
    "participating_mean", "participating_worst", "held_out_mean", "held_out_worst", "global"
]
PaperName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
Names = Annotated[dict[str, str], Field(min_length=1)]
# the path of a file, relative to the current folder; a smoke run in another folder still finds it
FilePath = Annotated[str, Field(json_schema_extra={"format": "path"})]
Superclasses = Annotated[
    FilePath,
    Field(description="YAML file that maps the name of each class to that of its superclass."),
]


class OfPaper(Keys):
    """A table of a paper, from workflow/papers/<paper>/numbers.yaml."""

    paper: PaperName
    """The paper, by its folder in workflow/papers, such as pep_fedpt."""
    table: int
    """Number of the table in the paper."""


class Published(OfPaper):
    """Numbers of a paper beside the measured ones, from workflow/papers/<paper>/numbers.yaml."""

    rows: Names
    """Maps the label of a method to the name of a row in the paper. Methods that are left out have
    no published number."""
    columns: Names
    """Maps <dataset>/<partition>, by their labels, to the paper's column."""


class PublishedGrid(OfPaper):
    """Numbers of a paper for the combinations of a grid, from workflow/papers/<paper>/numbers.yaml.
    The values of a combination are the name of its row.
    """

    columns: Names
    """Maps <dataset>/<partition>, by their labels, or `average` to the paper's column."""


class TableKind(OutputKind):
    """The keys of every table."""

    title: str | None = None
    """Title, which begins the caption. Default: the study's name."""


class RunsTable(TableKind):
    """The keys of a table of methods."""

    methods: Methods = None
    published: Published | None = None

    def explain(self, runs: Any) -> tuple[str, ...]:
        """Return whole sentences that say how the numbers of the runs were made; here none."""
        return ()

    def select_columns(self, measured: list[dict[str, float]]) -> list[dict[str, float]]:
        """Return the numbers of each run that the table shows; a kind may leave out some."""
        return measured


class AccuracyTable(RunsTable):
    """The keys of a table of accuracies."""

    personalized: Personalized = True


class GridTable(TableKind):
    """The keys of a table of a grid's members."""

    spec = KindSpec(shows="grid")
    methods: Methods = None
    published: PublishedGrid | None = None


class FigureKind(OutputKind):
    """The keys of every figure."""

    # dots per inch of the PNG; None: those of the look of all figures
    dots_per_inch: ClassVar[int | None] = None


class RunsFigure(FigureKind):
    """The keys of a figure of methods."""

    methods: Methods = None


class ArtefactFigure(RunsFigure):
    """The keys of a figure of any artefact, a table that methods produce."""

    artefact: str
    """Name of a table that methods produce (an artefact), as [artefacts] in their method.toml
    declares it."""
    x: str
    """Column of the artefact on the x axis."""
    y: str
    """Column of the artefact on the y axis. `lines` and `bars` show its mean over rows of the same
    x."""
    log: bool = False
    """Whether the y axis is logarithmic."""

    def needs(self) -> KindSpec:
        """Return what the kind needs; the key `artefact` names the artefact."""
        return replace(self.spec, artefact=self.artefact)


def with_superclasses(path: str | None, output: OutputEntry, where: KeyPath) -> OutputEntry:
    """Return an output with the superclass of every class, read from the file at `path`.

    Return it unchanged if `path` is None. Raise an InvalidKeyError if there is no such file.
    """
    if path is None:
        return output
    if not resource(path).is_file():
        raise (where / "superclasses").error(f"the file '{path}' does not exist; correct the path")
    labels = {name: str(label) for name, label in read(resource(path)).items()}
    return replace(output, extra=output.extra | {"superclass_of": labels})
