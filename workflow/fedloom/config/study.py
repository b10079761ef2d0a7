"""The keys of the config: of `study`, of `methods`, of `select`; sections of kinds are apart."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedloom.common.schema import UNSET, Count, Distinct, Keys, Label, Seed, Several, Share
from fedloom.hooks.training_options import Training

Rounds = Annotated[int, Field(ge=1, le=9999)]
Axes = Annotated[dict[str, Several[Any]], Field(min_length=1)]
Grid = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
Sentences = dict[str, str]


class FixedSeeds(Keys):
    """Seeds of parts of all runs, where a paper repeats only the rest; null: the run's seed."""

    partition: Seed | None = None
    """Of partitions without a `seed`; they divide by it."""
    sampling: Seed | None = None
    """Of the clients of a round, and of those whose images make the prototypes."""
    initialisation: Seed | None = None
    """Of what server and clients start with."""


class Report(Keys):
    """What the tables report."""

    last_evaluations: Count = 1
    """The mean over this number of the last evaluations."""
    worst_of_evaluations: Count | None = None
    """The worst accuracy is not a client's, but the lowest mean over clients among this number of
    the last evaluations (PEP-FedPT, footnote 4)."""


class Tune(Keys):
    """How every method's options are chosen before the study's seeds are trained.

    It trains with the same number of combinations on a part of the clients' training images, and
    keeps the one whose participating clients are best on the rest; never on a test image.
    """

    trials: Count
    """Combinations that every method tries."""
    values: Axes
    """Option, or training.option -> values that every method tries."""
    per_method: dict[str, Axes] = Field(default={})
    """Method label -> an option that it alone tries -> its values; they take turns beside `values`.
    """
    validation: Share = 0.2
    """Share of every client's training images that trials are evaluated on, stratified by class."""
    rounds: Rounds | None = None
    """Of a trial; default: study.rounds."""
    seed: Seed = 1000
    """Of all trials; none of study.seeds."""


class Study(Keys):
    """Rounds, seeds and evaluations, unless a partition's `protocol` or a method overrides them."""

    name: Label
    """Names the folder of the tables."""
    paper: str | None = None
    """The paper that the study is of, by its folder in workflow/papers, as pep_fedpt."""
    shows: list[str] = Field(default=[])
    """What it shows of the paper, as Table 1 or Figure 3."""
    deviations: Sentences = Field(default={})
    """Where it differs from the paper; a word -> a sentence."""
    open_questions: Sentences = Field(default={})
    """What the paper leaves open, and the choice made here; a word -> a sentence."""
    rounds: Rounds
    seeds: Several[Seed]
    """Of partition, sampling, initialisation and batch order, except those in `fixed_seeds`."""
    fixed_seeds: FixedSeeds = FixedSeeds()
    clients_per_round: Count
    rounds_per_job: Count = 20
    """Rounds trained by one job; long enough that start-up stays under 5%."""
    evaluate_every: Count = 1
    """Clients are evaluated after every n-th round, and after the last of a job."""
    evaluate_clients: Count | None = None
    """Number of clients to evaluate in rounds that no table reports (`report`), drawn anew each
    time, participating and held-out ones in proportion; default: all."""
    report: Report = Report()
    global_test: bool = False
    """Evaluate the server's model on all test images too (PFPT); where a method has none, every
    participating client's own (SGPT)."""
    confusion: bool = False
    """Also write every run's confusion.parquet: how many test images of a class were taken for
    which, per client and evaluated round, and for the global test."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of a backbone's arithmetic; tf32 is a GPU's own, and bf16 keeps the trained parameters, the
    residual stream and the norms in float32."""
    stacked: bool = True
    """Train and evaluate the clients of a round as one batch; false: one client after another, with
    less memory, more time, and the same numbers up to rounding."""
    gradient_checkpointing: bool = False
    """Compute the inside of a backbone's blocks again in the backward pass: a fraction of the
    memory for about a third more time, and the same numbers."""
    training: Training = Training()
    """Overrides method.toml's."""
    tune: Tune | None = None


class Protocol(Keys):
    """Keys of `study` that runs on a partition override."""

    rounds: Rounds = Field(default=UNSET)
    clients_per_round: Count = Field(default=UNSET)
    evaluate_every: Count = Field(default=UNSET)
    report: Report = Report()
    training: Training = Training()

    def apply_to(self, study: Study) -> Study:
        """Return the study as the partition's runs have it, without training options."""
        given = self.model_dump(exclude_unset=True, exclude={"report", "training"})
        report = self.report.model_dump(exclude_unset=True)
        if report:
            given["report"] = study.report.model_copy(update=report)
        return study.model_copy(update=given) if given else study


class PartitionGrid(Keys):
    """The key of a partition that stands for several."""

    grid: Grid
    """Key of the scheme -> its values; the label then stands for one per combination."""


class WrapperEntry(Keys):
    """A plugin around a method's hooks."""

    plugin: str
    options: dict[str, Any] = Field(default={})


class MethodEntry(Keys):
    """A label of a method; a plugin's own name needs no entry."""

    plugin: str
    """A folder of plugins/ or an installed package."""
    title: str | None = None
    """Its name in tables and figures."""
    options: dict[str, Any] = Field(default={})
    """See the plugin's method.toml."""
    grid: Grid | None = None
    """Option, or training.option, or option.position for an entry of a list (from 0) -> its values;
    the label then stands for one per combination, as <label>.4-8-12, wherever methods are named."""
    training: Training = Training()
    """Overrides the study's and the partition's."""
    rounds: Rounds | None = None
    """Default: the partition's, or the study's."""
    wrappers: list[WrapperEntry] = Field(default=[])
    """Plugins around the method's hooks; each sees what those before it made."""


class Select(Keys):
    """Which labels the study crosses with each other, and what it makes of the results."""

    datasets: Several[str]
    partitions: Several[str]
    scenarios: Several[str] | None = None
    """<dataset>/<partition>, in place of all datasets crossed with all partitions."""
    backbones: Several[str]
    methods: Several[str]
    tables: Distinct[str] = Field(default=[])
    """`make run` prints the first."""
    figures: Distinct[str] = Field(default=[])


# a section whose entries are of a kind, which fedloom.config.kinds checks
Entries = Annotated[dict[Label, dict[str, Any]], Field(min_length=1)]


class Config(Keys):
    """The whole of config.yaml with a study over it."""

    study: Study
    datasets: Entries
    partitions: Entries
    backbones: Entries
    methods: dict[Label, MethodEntry] = Field(default={})
    """Labels of methods; a plugin's own name needs no entry."""
    tables: Entries
    figures: Entries
    select: Select
