"""The arguments and results of hooks: the task (fixed in a run), the cohort and the update."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.seeds import torch_generator
from fedloom.common.trees import Tree, stack, tensor_map
from fedloom.config.settings import ResolvedSeeds
from fedloom.data.batch import Batch, missing_cache_reader
from fedloom.data.federation import Arrived, Federation
from fedloom.federated.state import Participation
from fedloom.hooks.training_options import DEFAULTS
from fedloom.machine.memory import USUAL_BATCH_LIMITS, BatchLimits
from fedloom.machine.transfers import to_device

# only for type checkers: these imports need timm and open_clip
if TYPE_CHECKING:
    from fedloom.backbones.backbone import Backbone
    from fedloom.backbones.clip.model import FrozenCLIP  # noqa: F401  the name in CLIPTask
    from fedloom.backbones.vit import FrozenViT  # noqa: F401  the name in ViTTask

FrozenBackbone = TypeVar("FrozenBackbone", bound="Backbone")
# the class in a method's options.py; `typing.TypeVar` can have a default only from Python 3.13 on
Options = TypeVar("Options", default=Any)


@dataclass(frozen=True)
class WarmStart:
    """The class prototypes that the server starts with (`toolbox.prototypes.warm_start`).

    Attributes:
        mean: prototypes [M, C, d] of the C classes: mean class tokens at the input of each of the M
            blocks.
        spread: largest L1 distance [M, C] between a class token and its client's mean of that
            class.
        count: number of images [C] of each class that the prototypes were computed from.
    """

    mean: Tensor
    spread: Tensor
    count: Tensor


@dataclass(frozen=True)
class TrainingOptions:
    """How clients train. `fedloom.hooks.training_options` documents and checks these values.

    A method that trains must set the first five. In a method that trains nothing they have the
    values below. The defaults of the others are those of the keys.

    Attributes:
        schedule_rounds: number of rounds of the learning rate's schedule. It is None if neither the
            schedule nor the method depends on it. Read it as `rounds`.
    """

    optimizer: str = "sgd"
    lr: float = 0.0
    schedule: str = "constant"
    epochs: int = 1
    batch_size: int = 1
    decay: float = DEFAULTS["decay"]
    momentum: float = DEFAULTS["momentum"]
    betas: Sequence[float] = tuple(DEFAULTS["betas"])
    eps: float = DEFAULTS["eps"]
    weight_decay: float = DEFAULTS["weight_decay"]
    clip: float | None = DEFAULTS["clip"]
    local_steps: int | None = DEFAULTS["local_steps"]
    augment: bool | str = DEFAULTS["augment"]
    drop_last: bool = DEFAULTS["drop_last"]
    micro_batch: int | None = DEFAULTS["micro_batch"]
    schedule_rounds: int | None = None

    @property
    def rounds(self) -> int:
        """Return the number of rounds of the learning rate's schedule.

        Raises:
            FedLoomError: method.toml does not declare that the method reads it (`uses_rounds`).
        """
        if self.schedule_rounds is None:
            raise FedLoomError(
                "the method reads task.training.rounds, which its method.toml does not ask for; "
                "add uses_rounds = true"
            )
        return self.schedule_rounds


@dataclass(frozen=True)
class MethodFacts:
    """What the runtime knows about a method: its method.toml under the options of the run.

    Attributes:
        name: name of the plugin.
        stacked: True if the clients of a round train as one cohort. False if each client is a
            cohort of its own.
        features_only: True if the method reads only cached features, and never pixels or patches.
        forward_inputs: what the method runs through the backbone in a training step, "images" or
            "texts" or both.
        passes: how often a step does so with different prompts (see `cost` in method.toml).
        whole_cohorts: True if all clients of a round must train as one cohort.
        trains_weights: True if clients may train weights of the backbone.
        prompts: number of tokens that a block of a ViT has besides an image's tokens.
        aggregation: the mean of the updates that the server takes, "plain" or "weighted" by numbers
            of training images. It is None if the server uses each update.
        rejects_non_finite: True if a wrapper leaves out updates that hold NaN or infinity.
    """

    name: str
    stacked: bool = True
    features_only: bool = False
    forward_inputs: tuple[str, ...] = ("images",)
    passes: int | str = 1
    whole_cohorts: bool = False
    trains_weights: bool = False
    prompts: int = 0
    aggregation: str | None = None
    rejects_non_finite: bool = False


@dataclass(frozen=True)
class Task(Generic[FrozenBackbone, Options]):
    """Everything that a hook may read and that is not state.

    `ViTTask` and `CLIPTask` of `fedloom.toolbox` tell type checkers and editors the backbone's
    class. `ViTTask[Options]` also tells them the class of the method's options.

    Attributes:
        seed: the run's seed. Draw random numbers from `generator`, never from this seed.
        fixed_seeds: seeds that replace `seed` when clients are selected, and in round 0
            (`study.fixed_seeds`).
        options: the method's options, as attributes. At run time it is a SimpleNamespace; the class
            `Options` of the method's options.py describes it to type checkers and editors.
        training: the training options (optimizer, lr, schedule, ...; see
            fedloom.hooks.training_options), and `rounds`.
        backbone: a FrozenViT (`fedloom.backbones.vit`), FrozenCLIP (`backbones.clip.model`) or
            FrozenResNet (`backbones.resnet`).
        data: the images of all clients, and the ids of the clients that take part in training.
        clients_per_round: number of clients that take part in a round.
        declared: what method.toml says about the method under the options of this run.
        wrappers: the options of each of the method's wrappers, by the wrapper's name. They are
            attributes too, and the class `Options` of the wrapper's options.py describes them.
        warm_start: see `prototypes`; None if the method does not need it.
        secret: 32 random bytes from the operating system, different in every job; see
            `secret_uniform`.
        limits: how much may be trained or evaluated as one batch.
        round: the number of the round, from 1; 0 while states are initialised.
        selected: ids of the round's clients, ascending. It is empty before they are selected, and
            in evaluations.
    """

    seed: int
    options: Options
    training: TrainingOptions
    backbone: FrozenBackbone
    data: Federation
    clients_per_round: int
    declared: MethodFacts
    fixed_seeds: ResolvedSeeds = field(default_factory=ResolvedSeeds)
    wrappers: dict[str, Any] = field(default_factory=dict)
    warm_start: WarmStart | None = None
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    limits: BatchLimits = USUAL_BATCH_LIMITS
    round: int = 0
    selected: tuple[int, ...] = ()

    @property
    def method(self) -> str:
        """Return the name of the method's plugin."""
        return self.declared.name

    @property
    def aggregation(self) -> str | None:
        """Return the mean of the updates that the server takes, "plain" or "weighted" by images.

        It is None if the server uses each update.
        """
        return self.declared.aggregation

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes of the dataset."""
        return self.data.num_classes

    @property
    def prototypes(self) -> WarmStart:
        """Return the class prototypes that the server starts with.

        Raises:
            FedLoomError: method.toml does not list "prototypes" in `needs`.
        """
        if self.warm_start is None:
            return missing_cache_reader("prototypes")()
        return self.warm_start

    def at(self, round_number: int) -> "Task[FrozenBackbone, Options]":
        """Return the same task in round `round_number`, with the data of that round."""
        return replace(self, round=round_number, data=self.data.for_round(round_number))

    @property
    def arrived(self) -> Arrived:
        """Return which parts of a stream have arrived by this round (`arrivals` of a partition)."""
        if self.data.arrived is not None:
            return self.data.arrived
        every = torch.ones(self.num_classes, dtype=torch.bool, device=self.data.device)
        return Arrived(0, 1, every, every)

    def generator(self, purpose: str, *ids: int) -> torch.Generator:
        """Return a random generator whose numbers follow from (seed, purpose, round, ids).

        Each call starts the same stream from its beginning. For a stream of one client, put the
        client's id among `ids`. In round 0, in which states are initialised,
        `study.fixed_seeds.initialisation` replaces the seed if the study sets it.
        """
        seed = self.seed
        if self.round == 0 and self.fixed_seeds.initialisation is not None:
            seed = self.fixed_seeds.initialisation
        return torch_generator(seed, f"method: {purpose}", self.round, *ids)

    def selecting(self) -> "Task[FrozenBackbone, Options]":
        """Return the same task with the seed that selects the clients of a round."""
        if self.fixed_seeds.sampling is None:
            return self
        return replace(self, seed=self.fixed_seeds.sampling)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Name the new place of an attribute that plugins could read here before 2026-11-28.

            Raises:
                AttributeError: always.
            """
            if name == "fixed":
                raise AttributeError("task.fixed is now task.fixed_seeds; read that")
            if name == "plugin":
                raise AttributeError("task.plugin is now task.declared; read that")
            if name in MethodFacts.__dataclass_fields__:
                raise AttributeError(f"task.{name} is now task.declared.{name}; read that")
            raise AttributeError(f"a task has no attribute '{name}'")


ViTTask = Task["FrozenViT", Options]
CLIPTask = Task["FrozenCLIP", Options]


class History:
    """What the server knows about the participating clients before a round. It has no test data.

    Attributes:
        num_examples: number of training images, by client id.
        rounds: number of rounds that the client was selected in so far, by client id.
        last_round: the last round that the client was selected in, by client id. Clients that were
            never selected are left out.
        train_loss: the training loss of the client's last update that reached `aggregate`, by
            client id. Clients without such an update are left out.
    """

    num_examples: dict[int, int]
    rounds: dict[int, int]
    last_round: dict[int, int]
    train_loss: dict[int, float]

    def __init__(self, data: Federation, participation: Mapping[int, Participation]):
        """Take the data, and what the server remembers of clients, by client id."""
        # for every participating client
        never = Participation()
        self.num_examples = {k: len(data.train[k]) for k in data.participating}
        self.rounds = {k: participation.get(k, never).rounds for k in data.participating}

        # for clients that were selected, and for clients whose update arrived
        self.last_round = {k: entry.last_round for k, entry in participation.items()}
        self.train_loss = {
            k: entry.train_loss
            for k, entry in participation.items()
            if entry.train_loss is not None
        }


@dataclass(frozen=True)
class Cohort:
    """K clients that train, or are evaluated, as one batch.

    Attributes:
        ids: client ids [K], ascending. For the server's model it is (SERVER_MODEL,).
        state: personal states of the clients, stacked [K, ...].
        priors: share [K, C] of every class in each client's training images.
        num_examples: number of training images [K].
        work: share of its local steps that each client completes [K]. `train_locally` obeys it.
        wrapper_states: what wrappers keep on each client [K], by the wrapper's name, without a
            client axis. It is {} before the client's first round, and in evaluations.
        logit_offsets: what wrappers add to the logits of each client [K, C]: in the losses of its
            training, or in an evaluation to its answers. None if no wrapper adds anything.
    """

    ids: tuple[int, ...]
    state: Tree
    priors: Tensor
    num_examples: tuple[int, ...]
    work: tuple[float, ...]
    wrapper_states: tuple[Tree, ...] = ()
    logit_offsets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_server_model(self) -> bool:
        """Return True if this cohort stands for the server's model and not for clients."""
        return self.ids == (SERVER_MODEL,)

    def subset(self, chosen: Sequence[int]) -> "Cohort":
        """Return a cohort of the clients at these positions of this one."""
        positions = to_device(np.array(chosen, np.int64), self.priors.device)
        offsets = self.logit_offsets
        if offsets is not None:
            offsets = offsets[positions]
        return Cohort(
            ids=tuple(self.ids[k] for k in chosen),
            state=tensor_map(lambda value: value[positions], self.state),
            priors=self.priors[positions],
            num_examples=tuple(self.num_examples[k] for k in chosen),
            work=tuple(self.work[k] for k in chosen),
            wrapper_states=tuple(self.wrapper_states[k] for k in chosen),
            logit_offsets=offsets,
        )


def cohort(
    task: Task,
    ids: list[int],
    states: list[Tree],
    work: Sequence[float] | None = None,
    wrapper_states: Sequence[Tree] | None = None,
) -> Cohort:
    """Return a cohort of the clients `ids`.

    The server's model (`ids == [SERVER_MODEL]`) gets uniform class priors and no training images.

    Args:
        states: the personal state of each client.
        work: the share of its local steps that each client completes; default: 1.
        wrapper_states: what wrappers keep on each client; default: nothing.
    """
    # class priors [K, C], and numbers of training images
    if ids == [SERVER_MODEL]:
        priors = torch.full_like(task.data.priors[:1], 1 / task.num_classes)
        num_examples = (0,)
    else:
        priors = task.data.priors[torch.tensor(ids, device=task.data.priors.device)]
        num_examples = tuple(len(task.data.train[k]) for k in ids)

    # the defaults
    if work is None:
        work = [1.0] * len(ids)
    if wrapper_states is None:
        wrapper_states = [{} for _ in ids]

    return Cohort(
        ids=tuple(ids),
        state=stack(states),
        priors=priors,
        num_examples=num_examples,
        work=tuple(work),
        wrapper_states=tuple(wrapper_states),
    )


@dataclass
class Update:
    """The result of one client's round.

    Attributes:
        payload: everything that the client uploads, without a client axis. It is counted as bytes
            up.
        client_state: what the client keeps for its next round, without a client axis.
        num_examples: number of the client's training images.
        metrics: plain numbers by name, which become columns of clients.parquet. `train_loss` must
            be among them; its mean over clients is written to rounds.parquet. `guessing_loss` is
            the loss of a guess; default: log C.
        side_channel: statistics that only wrappers may read, such as a sensitivity for differential
            privacy. They are not sent, not stored and not counted.
        wrapper_state: what wrappers keep on the client for its next round, by the wrapper's name:
            {"my_wrapper": {...}}. It has no client axis, and is not sent.
        received: what the client had received, without a client axis. The runtime fills it in, and
            `receive` may add to it.
        client: the client's id, which the runtime fills in.
    """

    payload: Tree
    client_state: Tree
    num_examples: int
    metrics: dict[str, float]
    side_channel: Tree = field(default_factory=dict)
    wrapper_state: Tree = field(default_factory=dict)
    received: Tree = field(default_factory=dict)
    client: int = -1


Answers: TypeAlias = Callable[[Sequence[np.ndarray]], Iterator[tuple[Cohort, Batch, Tensor]]]
