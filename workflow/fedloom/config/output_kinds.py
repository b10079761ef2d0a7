"""What the kinds of tables and figures have in common: keys, captions, and what they need."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Keys, Several
from fedloom.config.reading import read
from fedloom.machine.install import resource

if TYPE_CHECKING:
    from fedloom.config.settings import Output, Settings

SHARED = {"title", "scenarios", "backbones", "methods", "published"}  # keys that no kind reads
Requirements = tuple[Callable[["Settings", "Output", str], None], ...]


class OutputKind(Keys):
    """The keys of every table and figure, and what follows its kind."""

    # members of one grid or of several: grid, grids; settings need no run
    shows: ClassVar[Literal["runs", "grid", "grids", "backbones", "datasets", "settings"]] = "runs"
    # the method's table that it reads beside evaluations
    artefact_name: ClassVar[str | None] = None
    # of a backbone: accuracy by block, or features; of runs: names, if it reads those of classes
    reads: ClassVar[Literal["accuracy", "features", "names"]] = "accuracy"
    partition_key: ClassVar[str | None] = None  # it shows partitions that set this key
    first_seed: ClassVar[bool] = False  # True if it shows that seed alone
    requires: ClassVar[Requirements] = ()  # checks of the study, of report/requirements.py

    scenarios: Several[str] | None = None
    """Some of the study's, as <dataset>/<partition>; default: all."""
    backbones: Several[str] | None = None
    """Some of select.backbones; default: all."""

    @property
    def own(self) -> dict[str, Any]:
        """The keys that its kind reads."""
        return self.model_dump(exclude=SHARED, exclude_none=True)

    @property
    def caption(self) -> str:
        """The report's text on its kind: the description, and values other than the defaults."""
        values = self.model_dump(exclude=SHARED, exclude_none=True, exclude_defaults=True)
        values = {key: value for key, value in values.items() if not isinstance(value, dict)}
        style: dict[str, Any] = {"default_flow_style": True, "width": math.inf}
        shown = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, **style)
        return f"{self.__doc__} Here {shown.strip()[1:-1]}." if values else self.__doc__ or ""

    def complete(self, settings: "Settings", output: "Output", where: str) -> "Output":
        """Return the output with what its kind reads of the study or of files (`extra`)."""
        return output

    @classmethod
    def extra_of(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a job's settings that `complete` has added to the keys."""
        return {key: value for key, value in settings.items() if key not in cls.model_fields}


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

    across_partitions: ClassVar[bool] = False  # True if a row has a method's runs on all of them

    methods: Methods = None
    published: Published | None = None


class AccuracyTable(RunsTable):
    """The keys of a table of accuracies."""

    personalized: Personalized = True


class GridTable(TableKind):
    """The keys of a table of a grid's members."""

    shows = "grid"
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

    @property
    def artefact_name(self) -> str:
        """The artefact that it is made of."""
        return self.artefact


def with_superclasses(path: str | None, output: "Output", where: str) -> "Output":
    """Return an output with the superclass of every class, from the file that its key names."""
    if path is None:
        return output
    if not resource(path).is_file():
        raise FedLoomError(f"{where}.superclasses: no such file '{path}'")
    labels = {name: str(label) for name, label in read(resource(path)).items()}
    return replace(output, extra=output.extra | {"superclass_of": labels})
