"""Define the keys of `study`, `methods` and `select`; other sections have kinds, see kinds.py."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedloom.common.json_types import JsonDict
from fedloom.common.schema import UNSET, Count, Distinct, Keys, Label, OpenShare, Seed, Several
from fedloom.hooks.training_options import Training

Rounds = Annotated[int, Field(ge=1, le=9999)]
Axes = Annotated[dict[str, Several[Any]], Field(min_length=1)]
GridAxes = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
Sentences = dict[str, str]


class FixedSeeds(Keys):
    """Seeds that all runs share, for papers that vary only some seeds. Null: the run's own seed."""

    partition: Seed | None = None
    """Seeds the division of partitions that do not set `seed` themselves."""
    sampling: Seed | None = None
    """Seeds the sampling of clients: of those that train in each round, and of those whose images
    make the prototypes."""
    initialisation: Seed | None = None
    """Seeds the initial parameters of the server and the clients."""


class Report(Keys):
    """Which evaluations the tables report."""

    last_evaluations: Count = 1
    """Tables report the mean over this number of the last evaluations."""
    worst_of_evaluations: Count | None = None
    """If set, the worst accuracy is not that of the worst client. It is the lowest mean over
    clients among this number of the last evaluations (PEP-FedPT, footnote 4)."""


class Tune(Keys):
    """How every method's options are chosen before the study's seeds are trained.

    All methods try the same number of combinations. Each is trained on a part of the clients'
    training images, and evaluated on the rest. The combination whose participating clients are best
    is chosen. No test image is used.
    """

    trials: Count
    """Number of combinations that every method tries."""
    values: Axes
    """Maps an option, or training.option, to the values that every method tries."""
    per_method: dict[str, Axes] = Field(default={})
    """Maps a method's label to options that it alone tries, and to their values. Each trial
    combines the next of these values with the next of `values`."""
    validation: OpenShare = 0.2
    """The share of every client's training images on which trials are evaluated. It is stratified
    by class."""
    rounds: Rounds | None = None
    """Number of rounds of each trial. Default: `study.rounds`."""
    seed: Seed = 1000
    """Seed shared by all trials; it must not be one of `study.seeds`."""


class Study(Keys):
    """Rounds, seeds and evaluations. A partition's `protocol` or a method may override them."""

    name: Label
    """The study's name, which is also the name of the folder of its tables and figures."""
    paper: str | None = None
    """The paper that the study repeats, by its folder in workflow/papers, such as pep_fedpt."""
    shows: list[str] = Field(default=[])
    """The parts of the paper that the study repeats, such as Table 1 or Figure 3."""
    deviations: Sentences = Field(default={})
    """States where the study differs from the paper: maps a word to a sentence."""
    open_questions: Sentences = Field(default={})
    """States what the paper leaves open, and what was chosen here: maps a word to a sentence."""
    remark: str | None = None
    """A sentence that begins the captions of all tables and figures, such as "Preliminary."."""
    rounds: Rounds
    """Number of communication rounds."""
    seeds: Several[Seed]
    """Seeds, each of which gives one run. A seed determines the partition, sampling, initialisation
    and batch order, except what `fixed_seeds` sets."""
    fixed_seeds: FixedSeeds = FixedSeeds()
    clients_per_round: Count
    """Number of clients that are sampled for training in each round."""
    rounds_per_job: Count = 20
    """Number of rounds that one job trains. It should be so large that a job's start takes less
    than 5% of the time."""
    evaluate_every: Count = 1
    """Clients are evaluated after every n-th round, and after the last round of each job."""
    evaluate_clients: Count | None = None
    """Number of clients to evaluate in rounds that no table reports (`report`). They are drawn anew
    each time, with participating and held-out clients in proportion. Default: all clients."""
    report: Report = Report()
    global_test: bool = False
    """Also evaluate the server's model on all test images (PFPT). If a method has no server model,
    evaluate every participating client's own model on them (SGPT)."""
    confusion: bool = False
    """Also count every run's answers, per client and evaluated round, and for the global test:
    confusion.parquet has the number of test images by true and predicted class, calibration.parquet
    by the confidence of the answer. The tables and figures `scores`, `reliability` and `confusion`
    need them."""
    client_images: bool = True
    """Show some training images of a few clients in the report."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """The number format in which backbones compute. tf32 needs a GPU. bf16 keeps the trained
    parameters, the residual stream and the norms in float32."""
    stacked: bool = True
    """Train and evaluate the clients of a round as one batch. If false, they follow one after the
    other, which takes less memory and more time; the numbers are the same up to rounding."""
    gradient_checkpointing: bool = False
    """Compute the inside of a backbone's blocks again in the backward pass. This takes a fraction
    of the memory and about a third more time; the numbers are the same."""
    compile: Literal["auto"] | bool = "auto"
    """Compile the frozen blocks of backbones for steps with full batches of all clients.
    This is faster on a GPU, and the numbers differ by rounding. By default, a GPU compiles where
    Triton is installed, and CPU cores do not."""
    training: Training = Training()
    """Training options, which override those of method.toml."""
    tune: Tune | None = None


class Protocol(Keys):
    """Keys that override those of `study` in the runs on the partition."""

    rounds: Rounds = Field(default=UNSET)
    """Number of communication rounds. Default: `study.rounds`."""
    clients_per_round: Count = Field(default=UNSET)
    """Number of clients that are sampled for training in each round. Default:
    `study.clients_per_round`."""
    evaluate_every: Count = Field(default=UNSET)
    """Clients are evaluated after every n-th round. Default: `study.evaluate_every`."""
    report: Report = Report()
    training: Training = Training()
    """Training options, which override those of the study."""

    def apply_to(self, study: Study) -> Study:
        """Return the study with the partition's values, except for training options."""
        given = self.model_dump(exclude_unset=True, exclude={"report", "training"})
        report = self.report.model_dump(exclude_unset=True)
        if report:
            given["report"] = study.report.model_copy(update=report)
        return study.model_copy(update=given) if given else study


class PartitionGrid(Keys):
    """The key of a partition that stands for several."""

    grid: GridAxes
    """Maps a key of the scheme to its values. The label then stands for one partition per
    combination of values."""


class WrapperEntry(Keys):
    """A plugin around a method's hooks."""

    plugin: str
    """The name of the wrapper's plugin."""
    options: JsonDict = Field(default={})
    """Values of options that the wrapper's method.toml declares."""


class MethodEntry(Keys):
    """A label of a method; a plugin's own name needs no entry."""

    plugin: str
    """The name of the plugin, which is in plugins/ or in an installed package."""
    title: str | None = None
    """The method's name in tables and figures."""
    options: JsonDict = Field(default={})
    """Values of options that the plugin's method.toml declares."""
    grid: GridAxes | None = None
    """Maps each axis to its values. An axis is an option, or a training option, written
    training.option, or an entry of a list, written option.position (from 0). The label then stands
    for one method per combination, such as <label>.4-8-12, wherever methods are named."""
    axis_titles: dict[str, str] = Field(default={})
    """Maps an axis of `grid` to its title in tables and figures. Default: the axis as `grid` names
    it."""
    training: Training = Training()
    """Training options, which override those of the study and of the partition."""
    rounds: Rounds | None = None
    """Number of rounds. Default: the partition's, or the study's."""
    wrappers: list[WrapperEntry] = Field(default=[])
    """Plugins that wrap the method's hooks. Each wrapper sees the results of those before it."""


class Select(Keys):
    """Labels of the entries that the study combines, and of its tables and figures."""

    datasets: Several[str]
    """Labels of the datasets."""
    partitions: Several[str]
    """Labels of the partitions."""
    scenarios: Several[str] | None = None
    """Pairs <dataset>/<partition> to run. Default: all datasets, each with all partitions."""
    backbones: Several[str]
    """Labels of the backbones."""
    methods: Several[str]
    """Labels of the methods: entries of `methods`, or names of plugins."""
    tables: Distinct[str] = Field(default=[])
    """The tables to write; `make run` prints the first."""
    figures: Distinct[str] = Field(default=[])
    """The figures to draw."""


# a section whose entries each have a kind; fedloom.config.kinds checks them
Entries = Annotated[dict[Label, JsonDict], Field(min_length=1)]


class Config(Keys):
    """The whole of config.yaml with a study over it."""

    study: Study
    datasets: Entries
    partitions: Entries
    backbones: Entries
    methods: dict[Label, MethodEntry] = Field(default={})
    """Labels of methods; a plugin's own name needs no entry."""
    tables: dict[Label, JsonDict] = Field(default={})
    """Labels of tables, each of a kind."""
    figures: dict[Label, JsonDict] = Field(default={})
    """Labels of figures, each of a kind."""
    select: Select
