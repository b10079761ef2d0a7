"""What a rule hands to its job: one frozen dataclass per rule, sent as canonical JSON.

A job holds all that bears on its result and nothing else, so that Snakemake runs it again just when
that changes. Files have no place in it: they follow from the labels (fedloom.study.paths).
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import cattrs

from fedloom.common.errors import FedLoomError
from fedloom.common.io import canonical
from fedloom.config.rounds import Reported
from fedloom.config.settings import (
    NOTHING_FIXED,
    Backbone,
    Dataset,
    FixedSeeds,
    Grid,
    Method,
    Partition,
    Trial,
    Wrapper,
)
from fedloom.study.runs import Run

Job = TypeVar("Job")


@dataclass(frozen=True)
class DatasetJob:
    """Write a dataset's images into a store."""

    dataset: Dataset


@dataclass(frozen=True)
class PartitionJob:
    """Divide the images of a dataset over clients."""

    dataset: str
    partition: Partition
    seed: int


@dataclass(frozen=True)
class CacheJob:
    """Run the frozen backbone over a dataset; `cache` is features or patches."""

    cache: str
    dataset: str
    backbone: Backbone


@dataclass(frozen=True)
class PrototypesJob:
    """Compute the warm start of class prototypes.

    Attributes:
        sampling: the seed that the clients are sampled by; None: that of the run.
    """

    dataset: str
    partition: str
    backbone: str
    seed: int
    clients_per_round: int
    sampling: int | None = None


@dataclass(frozen=True)
class MethodSpec:
    """What of a method's label bears on a run's numbers."""

    plugin: str
    options: dict[str, Any]
    training: dict[str, Any]
    wrappers: tuple[Wrapper, ...]
    needs: tuple[str, ...]

    @classmethod
    def of(cls, method: Method) -> "MethodSpec":
        """Take what bears on numbers from a label's settings."""
        return cls(method.plugin, method.options, method.training, method.wrappers, method.needs)


@dataclass(frozen=True)
class RunSpec:
    """All that bears on a run's numbers: its fingerprint ties the run to its checkpoints.

    Attributes:
        schedule_rounds: the run's rounds where the learning rate depends on them (cosine), so
            that any other study can be extended; else None.
        stacked: False if every client is a cohort of its own.
        tuned: True if the method's options are overridden by those that rule `choose` wrote.
        fixed: seeds that do not follow the run's.
    """

    run: Run
    backbone: Backbone
    method: MethodSpec
    clients_per_round: int
    rounds_per_job: int
    schedule_rounds: int | None
    stacked: bool = True
    tuned: bool = False
    fixed: FixedSeeds = NOTHING_FIXED


@dataclass(frozen=True)
class TrainJob:
    """Train the rounds after `first` up to and including `last`.

    Attributes:
        evaluate: the rounds after which clients are evaluated.
        global_test: also evaluate the server's model on all test images.
        sources: digest of the run's source files (see fedloom.study.staleness).
        confusion: also count, at every evaluation, the answers by class and predicted class.
        trial: a run of study.tune, which is no error if it diverges.
        sampled: those rounds of `evaluate` after which `evaluate_clients` clients are evaluated;
            after the others, all are.
    """

    spec: RunSpec
    first: int
    last: int
    evaluate: tuple[int, ...]
    global_test: bool
    sources: str
    confusion: bool = False
    trial: bool = False
    sampled: tuple[int, ...] = ()
    evaluate_clients: int | None = None


@dataclass(frozen=True)
class ChooseJob:
    """Choose the best of a method's trials.

    Attributes:
        method: its label.
        seed, last: the trials', and their last round, whose evaluation counts.
    """

    dataset: str
    partition: str
    backbone: str
    method: str
    trials: tuple[Trial, ...]
    seed: int
    last: int


@dataclass(frozen=True)
class EvaluateJob:
    """Join the rows of a run's jobs, which end at the rounds `ends`."""

    run: Run
    ends: tuple[int, ...]
    confusion: bool


@dataclass(frozen=True)
class ArtefactJob:
    """Compute a method's own table from the state after round `last`."""

    spec: RunSpec
    last: int
    artefact: str


@dataclass(frozen=True)
class BlockAccuracyJob:
    """Measure how well the frozen class token tells classes apart at every block."""

    dataset: str
    backbone: str


@dataclass(frozen=True)
class PartitionChartJob:
    """Draw who holds what."""

    dataset: str
    partition: str
    seed: int


@dataclass(frozen=True)
class ShownPlugin:
    """The facts of a method.toml that a reader of a table must know.

    Attributes:
        trains: what clients train, in a table's words; "" if unknown, or not one thing in a grid.
        sees_held_out: the server trains on images of held-out clients.
    """

    trains: str = ""
    sees_held_out: bool = False


@dataclass(frozen=True)
class ShownMethod:
    """A method in a table or figure.

    Attributes:
        look: the look that its plugin asks for.
        plugin: facts of its method.toml.
    """

    label: str
    title: str
    look: dict[str, str]
    plugin: ShownPlugin


@dataclass(frozen=True)
class ShownGrid:
    """Some members of a grid, by their positions.

    A command line takes 128 KiB and a grid may have thousands of members.
    """

    grid: Grid
    positions: tuple[int, ...]
    look: dict[str, str]
    plugin: ShownPlugin


@dataclass(frozen=True)
class Shown:
    """The runs that a table or figure shows: scenarios, methods and seeds, crossed in that order.

    Attributes:
        scenarios: "dataset/partition/backbone".
        artefact: the method's table to read; None: evaluations.
        reported: what tables report of a run, by partition, and by "partition/method" where a
            method has rounds of its own.
    """

    scenarios: tuple[str, ...]
    methods: tuple[ShownMethod | ShownGrid, ...]
    seeds: tuple[int, ...]
    artefact: str | None
    reported: dict[str, Reported]


@dataclass(frozen=True)
class Tuned:
    """How the options of the methods of a table were chosen.

    Attributes:
        methods: labels of those that have trials.
        trials: of every method.
        rounds: numbers of rounds that trials have.
        seed: of a trial.
        share: of the training images, which the trials are evaluated on.
    """

    methods: tuple[str, ...]
    trials: int
    rounds: tuple[int, ...]
    seed: int
    share: float


@dataclass(frozen=True)
class TableJob:
    """Write a table.

    Attributes:
        settings: the keys of its kind.
        tuned: how the options of its methods were chosen, where they were.
    """

    study: str
    label: str
    kind: str
    module: str  # of the kind
    title: str | None
    settings: dict[str, Any]
    global_test: bool
    published: dict[str, Any] | None
    shown: Shown
    tuned: Tuned | None = None


@dataclass(frozen=True)
class FigureJob:
    """Draw a figure.

    Attributes:
        backbones: "dataset/backbone" of a kind that shows frozen backbones; empty for the others.
        shots: training images per class, by partition, where they are set.
    """

    study: str
    label: str
    kind: str
    module: str  # of the kind
    settings: dict[str, Any]
    shots: dict[str, int]
    shown: Shown | None
    backbones: tuple[str, ...]


def to_json(job: object) -> str:
    """Write a job as canonical JSON.

    Snakemake copies it into a script of its report, which `</script>` in a title would end.
    """
    return canonical(asdict(job)).replace("<", r"\u003c")  # type: ignore[call-overload]


def from_json(text: str, kind: type[Job]) -> Job:
    """Read a job of the given kind.

    Raises:
        FedLoomError: not the JSON of such a job.
    """
    try:
        return cattrs.structure(json.loads(text), kind)
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError) as error:
        reason = "; ".join(cattrs.transform_error(error)) or str(error)
        raise FedLoomError(f"--job is no {kind.__name__}: {reason}") from None
