"""Define what a rule hands to its job: a frozen dataclass, which is sent as canonical JSON.

There is one dataclass per rule. It holds all that the result of the job depends on, and nothing
else. The paths of the job's files follow from its labels.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import cattrs

from fedloom.common.errors import FedLoomError
from fedloom.common.files import canonical
from fedloom.common.json_types import JsonDict
from fedloom.config import settings as config
from fedloom.planning.run_labels import Run

AnyJob = TypeVar("AnyJob")


@dataclass(frozen=True)
class Job:
    """The job of a rule; each rule has a class derived from this one."""


@dataclass(frozen=True)
class DatasetJob(Job):
    """Write a dataset's images into a store."""

    dataset: config.Dataset


@dataclass(frozen=True)
class PartitionJob(Job):
    """Divide the images of a dataset over clients."""

    dataset: str
    partition: config.Partition
    seed: int


@dataclass(frozen=True)
class CacheJob(Job):
    """Run the frozen backbone over a dataset; `cache` is features or patches."""

    cache: str
    dataset: str
    backbone: config.BackboneSettings


@dataclass(frozen=True)
class PrototypesJob(Job):
    """Compute the warm start of class prototypes."""

    dataset: str
    partition: str
    backbone: str
    seed: int
    clients_per_round: int
    # the seed of the sample of clients; None: the run's seed
    sampling: int | None = None


@dataclass(frozen=True)
class MethodSpec:
    """The parts of a method's label that a run's numbers depend on."""

    plugin: str
    options: JsonDict
    training: JsonDict
    wrappers: tuple[config.Wrapper, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class RunSpec:
    """Everything that the numbers of a run depend on; checkpoints contain its fingerprint."""

    run: Run
    backbone: config.BackboneSettings
    method: MethodSpec
    clients_per_round: int
    rounds_per_job: int
    # the number of rounds, if the cosine schedule or the method depends on it; else None, so that
    # the study can be extended
    schedule_rounds: int | None
    # False: every client is a separate cohort
    stacked: bool = True
    # True: the options that rule `choose` wrote override the method's
    tuned: bool = False
    # seeds that replace the run's seed
    fixed_seeds: config.ResolvedSeeds = field(default_factory=config.ResolvedSeeds)


@dataclass(frozen=True)
class TrainJob(Job):
    """Train the rounds after `after` up to and including `last`."""

    spec: RunSpec
    # the round before the first; 0 for the first job of a run
    after: int
    last: int
    # the rounds after which clients are evaluated
    evaluated_rounds: tuple[int, ...]
    # also evaluate the server's model on all test images
    global_test: bool
    # the digest of the run's source files (fedloom.planning.staleness)
    sources: str
    # also count test images by class and predicted class, and by confidence
    confusion: bool = False
    # the run is a trial of study.tune, which may diverge
    trial: bool = False
    # those rounds of `evaluated_rounds` after which only `clients_per_sample` clients are evaluated
    sampled_rounds: tuple[int, ...] = ()
    clients_per_sample: int | None = None


@dataclass(frozen=True)
class ChooseJob(Job):
    """Choose the best of a method's trials by accuracy after round `last`; they share a seed."""

    dataset: str
    partition: str
    backbone: str
    method: str
    trials: tuple[config.Trial, ...]
    seed: int
    last: int


@dataclass(frozen=True)
class EvaluateJob(Job):
    """Join the rows of a run's jobs, which end at the rounds `ends`."""

    run: Run
    ends: tuple[int, ...]
    confusion: bool
    # the log says so if the loss is not below that of guessing; a trial of study.tune may have such
    # a loss, and so may a method that trains nothing
    checks_loss: bool


@dataclass(frozen=True)
class ArtefactJob(Job):
    """Compute a method's own table from the state after round `last`."""

    spec: RunSpec
    last: int
    artefact: str
    # other datasets that clients are tested on
    transfer_to: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockAccuracyJob(Job):
    """Measure how well the frozen class token tells classes apart at every block."""

    dataset: str
    backbone: str


@dataclass(frozen=True)
class PartitionChartJob(Job):
    """Draw how many training images of each class every client has."""

    dataset: str
    partition: str
    seed: int


@dataclass(frozen=True)
class PlottedMethod:
    """A method in a table or figure, or the members of a grid together."""

    label: str
    title: str
    # the colour and marker that its plugin asks for
    look: dict[str, str]
    # the part that clients train; "" if unknown or mixed in a grid
    trains: str = ""
    # the server trains on images of held-out clients
    sees_held_out: bool = False
    # why its training loss cannot be compared with that of other methods; "" if it can
    other_loss: str = ""
    grid: config.Grid | None = None
    # the positions of the members in the grid; thousands of members would not fit into a command
    # line of 128 KiB
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlotInputs:
    """The runs of a table or figure: all combinations of scenarios, methods and seeds."""

    # each "dataset/partition/backbone"
    scenarios: tuple[str, ...]
    methods: tuple[PlottedMethod, ...]
    seeds: tuple[int, ...]
    # the artefact to read beside evaluations
    artefact: str | None
    # the reported rounds, by partition; if a method has other rounds, also by "partition/method"
    reported: dict[str, config.ReportedRounds]


@dataclass(frozen=True)
class Tuned:
    """How the options of a table's methods were chosen."""

    # the labels of the methods that have trials
    methods: tuple[str, ...]
    # the number of trials of each method
    trials: int
    # the numbers of rounds that trials have, in ascending order
    rounds: tuple[int, ...]
    seed: int
    # the share of the training images on which trials are evaluated
    share: float


@dataclass(frozen=True)
class TableJob(Job):
    """Write a table."""

    study: str
    label: str
    kind: str
    # the module that defines the kind
    module: str
    title: str | None
    # the keys of the kind with their values, and what the kind adds
    settings: JsonDict
    # the paper's numbers, if the table has them
    published: JsonDict | None
    shown: PlotInputs
    tuned: Tuned | None = None
    # the sentence of `study.remark`
    remark: str | None = None
    # the caption's sentence on a narrowed study; "" if the table is that of the whole study
    narrowed: str = ""


@dataclass(frozen=True)
class FigureJob(Job):
    """Draw a figure."""

    study: str
    label: str
    kind: str
    module: str
    settings: JsonDict
    # the runs; None if the kind shows frozen backbones
    shown: PlotInputs | None
    # the frozen backbones, each as "dataset/backbone"; empty if the kind shows runs
    backbones: tuple[str, ...]
    # the sentence of `study.remark`
    remark: str | None = None


def to_json(job: Job) -> str:
    """Write a job as canonical JSON."""
    return canonical(asdict(job))


def from_json(text: str, job_class: type[AnyJob]) -> AnyJob:
    """Read a job of a kind from JSON; raise a FedLoomError if the text is not JSON of that kind."""
    try:
        return cattrs.structure(json.loads(text), job_class)
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError) as error:
        reason = "; ".join(cattrs.transform_error(error)) or str(error)
        raise FedLoomError(f"--job must be the JSON of a {job_class.__name__}: {reason}") from None
