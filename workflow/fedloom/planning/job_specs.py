"""What a rule hands to its job: one frozen dataclass per rule, sent as canonical JSON.

It holds all that its result depends on and nothing else; its files follow from its labels.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import cattrs

from fedloom.common.errors import FedLoomError
from fedloom.common.files import canonical
from fedloom.config import settings as config
from fedloom.planning.run_labels import Run

Job = TypeVar("Job")


@dataclass(frozen=True)
class DatasetJob:
    """Write a dataset's images into a store."""

    dataset: config.Dataset


@dataclass(frozen=True)
class PartitionJob:
    """Divide the images of a dataset over clients."""

    dataset: str
    partition: config.Partition
    seed: int


@dataclass(frozen=True)
class CacheJob:
    """Run the frozen backbone over a dataset; `cache` is features or patches."""

    cache: str
    dataset: str
    backbone: config.Backbone


@dataclass(frozen=True)
class PrototypesJob:
    """Compute the warm start of class prototypes."""

    dataset: str
    partition: str
    backbone: str
    seed: int
    clients_per_round: int
    sampling: int | None = None  # seed of the sample of clients; None: the run's


@dataclass(frozen=True)
class MethodSpec:
    """The parts of a method's label that a run's numbers depend on."""

    plugin: str
    options: dict[str, Any]
    training: dict[str, Any]
    wrappers: tuple[config.Wrapper, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class RunSpec:
    """Everything that a run's numbers depend on; checkpoints carry its fingerprint."""

    run: Run
    backbone: config.Backbone
    method: MethodSpec
    clients_per_round: int
    rounds_per_job: int
    # where cosine or a method depends on them; else None, so that the study can be extended
    schedule_rounds: int | None
    stacked: bool = True  # False: every client is a separate cohort
    tuned: bool = False  # the options that rule `choose` wrote override the method's
    fixed: config.ResolvedSeeds = field(default_factory=config.ResolvedSeeds)


@dataclass(frozen=True)
class TrainJob:
    """Train the rounds after `first` up to and including `last`."""

    spec: RunSpec
    first: int
    last: int
    evaluate: tuple[int, ...]  # rounds after which clients are evaluated
    global_test: bool  # also evaluate the server's model on all test images
    sources: str  # digest of the run's source files (fedloom.planning.staleness)
    confusion: bool = False  # also count answers by class and predicted class
    trial: bool = False  # a run of study.tune, which may diverge
    sampled: tuple[int, ...] = ()  # rounds of `evaluate` for `evaluate_clients` clients alone
    evaluate_clients: int | None = None


@dataclass(frozen=True)
class ChooseJob:
    """Choose the best of a method's trials, which share a seed, by their accuracy after `last`."""

    dataset: str
    partition: str
    backbone: str
    method: str
    trials: tuple[config.Trial, ...]
    seed: int
    last: int


@dataclass(frozen=True)
class EvaluateJob:
    """Join the rows of a run's jobs, which end at the rounds `ends`."""

    run: Run
    ends: tuple[int, ...]
    confusion: bool
    trial: bool  # of study.tune, whose loss may stay that of guessing


@dataclass(frozen=True)
class ArtefactJob:
    """Compute a method's own table from the state after round `last`."""

    spec: RunSpec
    last: int
    artefact: str
    transfer_to: tuple[str, ...] = ()  # other datasets that clients are tested on


@dataclass(frozen=True)
class BlockAccuracyJob:
    """Measure how well the frozen class token tells classes apart at every block."""

    dataset: str
    backbone: str


@dataclass(frozen=True)
class PartitionChartJob:
    """Draw the classes of every client."""

    dataset: str
    partition: str
    seed: int


@dataclass(frozen=True)
class PlottedMethod:
    """A method in a table or figure, or members of a grid."""

    label: str
    title: str
    look: dict[str, str]  # what its plugin asks for
    trains: str = ""  # the part that clients train; "" if unknown or mixed in a grid
    sees_held_out: bool = False  # the server trains on images of held-out clients
    grid: config.Grid | None = None
    positions: tuple[int, ...] = ()  # of members: thousands do not fit a command line of 128 KiB


@dataclass(frozen=True)
class PlotInputs:
    """The runs of a table or figure: scenarios, methods and seeds, crossed in that order."""

    scenarios: tuple[str, ...]  # "dataset/partition/backbone"
    methods: tuple[PlottedMethod, ...]
    seeds: tuple[int, ...]
    artefact: str | None  # the table to read beside evaluations
    # by partition, and by "partition/method" where a method has other rounds
    reported: dict[str, config.Reported]


@dataclass(frozen=True)
class Tuned:
    """How the options of a table's methods were chosen."""

    methods: tuple[str, ...]  # those that have trials
    trials: int  # of each method
    rounds: tuple[int, ...]  # numbers of rounds that trials have
    seed: int
    share: float  # of the training images, on which trials are evaluated


@dataclass(frozen=True)
class TableJob:
    """Write a table."""

    study: str
    label: str
    kind: str
    module: str  # of the kind
    title: str | None
    settings: dict[str, Any]  # the keys of the kind, and what it adds
    published: dict[str, Any] | None
    shown: PlotInputs
    tuned: Tuned | None = None


@dataclass(frozen=True)
class FigureJob:
    """Draw a figure."""

    study: str
    label: str
    kind: str
    module: str
    settings: dict[str, Any]
    shown: PlotInputs | None
    backbones: tuple[str, ...]  # "dataset/backbone" of a kind that shows frozen backbones


def to_json(job: object) -> str:
    """Write a job as canonical JSON."""
    return canonical(asdict(job))  # type: ignore[call-overload]


def from_json(text: str, kind: type[Job]) -> Job:
    """Read a job of the given kind; refuse a text that is not its JSON."""
    try:
        return cattrs.structure(json.loads(text), kind)
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError) as error:
        reason = "; ".join(cattrs.transform_error(error)) or str(error)
        raise FedLoomError(f"--job must be the JSON of a {kind.__name__}: {reason}") from None
