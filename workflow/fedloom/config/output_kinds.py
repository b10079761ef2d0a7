"""Declare the keys that kinds of tables and figures have in common."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Keys, Several
from fedloom.config.reading import read
from fedloom.config.settings import KindSpec, Output, OutputKind
from fedloom.machine.install import resource

Methods = Annotated[Several[str] | None, Field(description="some of select.methods; default: all")]
AFTER = "the accuracy after the hook personalize, of a method that has it; false: before it"
Personalized = Annotated[bool, Field(description=AFTER)]
OVER = (
    "mean or worst accuracy over clients that train or are held out, or accuracy on all test "
    "images (study.global_test)"
)
AccuracyMetric = Annotated[
    Literal[
        "participating_mean", "participating_worst", "held_out_mean", "held_out_worst", "global"
    ],
    Field(description=OVER),
]
Paper = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$", description="a file, as pep_fedpt")]
Names = Annotated[dict[str, str], Field(min_length=1)]
Superclasses = Annotated[
    str, Field(description="YAML file of the classes' superclasses, class: superclass")
]


class OfPaper(Keys):
    """A table of a paper, of workflow/papers/<paper>/numbers.yaml."""

    paper: Paper
    table: int
    """Its number in the paper."""


class Published(OfPaper):
    """Numbers of a paper beside the measured ones: table -> rows -> row -> column -> metric."""

    rows: Names
    """Method label -> the paper's row; labels left out have no published number."""
    columns: Names
    """<dataset>/<partition>, by their labels -> the paper's column."""


class PublishedGrid(OfPaper):
    """Numbers of a paper for the combinations of a grid; its values find the rows."""

    columns: Names
    """<dataset>/<partition>, by their labels, or average -> the paper's column."""


class TableKind(OutputKind):
    """The keys of every table."""

    title: str | None = None
    """Begins the caption; default: the study's name."""


class RunsTable(TableKind):
    """The keys of a table of methods."""

    methods: Methods = None
    published: Published | None = None


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


class RunsFigure(FigureKind):
    """The keys of a figure of methods."""

    methods: Methods = None


class ArtefactFigure(RunsFigure):
    """The keys of a figure of any table that methods give."""

    artefact: str
    """A table that the methods give, see [artefacts] in method.toml."""
    x: str
    """A column of the artefact."""
    y: str
    """A column of the artefact; rows of one x are averaged."""
    log: bool = False
    """A logarithmic y axis."""

    def needs(self) -> KindSpec:
        """Return what the kind needs: here the artefact is a key."""
        return replace(self.spec, artefact=self.artefact)


def with_superclasses(path: str | None, output: Output, where: KeyPath) -> Output:
    """Return an output with the superclass of every class, from the file that its key names."""
    if path is None:
        return output
    if not resource(path).is_file():
        raise (where / "superclasses").error(f"no such file '{path}'")
    labels = {name: str(label) for name, label in read(resource(path)).items()}
    return replace(output, extra=output.extra | {"superclass_of": labels})
