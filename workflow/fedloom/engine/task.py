"""What a hook is given: the task (the round and all that is fixed) and the cohort of clients."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedloom.data.federation import Federation
from fedloom.engine.tree import Tree, stack, tensor_map
from fedloom.rng import torch_generator


@dataclass(frozen=True)
class Task:
    """Everything a hook may know that is not state.

    Attributes:
        round: 1 in the first round of training; 0 while the server is initialised.
        options: the method's options, as attributes.
        training: optimizer, lr, schedule, ... (config.schema.yaml), and `rounds`.
        backbone: frozen, see `fedloom.backbones`.
        data: all clients' images.
        prototypes: warm-start class prototypes [M, C, d] of the class token at the input of every
            block, or None for a method that does not need them.
        clients_per_round: how many clients take part in a round.
        stacked: whether they make one cohort; else each is a cohort of its own.
    """

    seed: int
    options: SimpleNamespace
    training: SimpleNamespace
    backbone: Any
    data: Federation
    clients_per_round: int
    stacked: bool = True
    prototypes: Tensor | None = None
    round: int = 0

    @property
    def num_classes(self) -> int:
        return self.data.num_classes

    def at(self, number: int) -> "Task":
        """The same task in another round."""
        return replace(self, round=number)

    def generator(self, purpose: str, *ids: int) -> torch.Generator:
        """The random stream of (seed, purpose, round, ids): name the client among the ids."""
        return torch_generator(self.seed, f"method: {purpose}", self.round, *ids)


@dataclass(frozen=True)
class Cohort:
    """K clients that train or are evaluated as one batch.

    Attributes:
        ids: [K], ascending.
        state: their personal states, stacked [K, ...].
        priors: [K, C] share of every class in each client's training images.
        num_examples: [K] training images.
    """

    ids: tuple[int, ...]
    state: Tree
    priors: Tensor
    num_examples: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, positions: Tensor) -> "Cohort":
        """The clients at `positions` of this cohort."""
        chosen = positions.tolist()
        return Cohort(
            ids=tuple(self.ids[k] for k in chosen),
            state=tensor_map(lambda value: value[positions], self.state),
            priors=self.priors[positions],
            num_examples=tuple(self.num_examples[k] for k in chosen),
        )


def cohort(task: Task, ids: list[int], states: list[Tree]) -> Cohort:
    """The clients `ids` with their personal states."""
    return Cohort(
        ids=tuple(ids),
        state=stack(states),
        priors=task.data.priors[torch.tensor(ids, device=task.data.priors.device)],
        num_examples=tuple(len(task.data.train[k]) for k in ids),
    )


@dataclass
class Update:
    """What one client hands back.

    Attributes:
        payload: what it uploads, and nothing else; counted as bytes up.
        client_state: what it keeps.
        num_examples: training images.
        metrics: plain numbers for the log; `train_loss` is shown.
    """

    payload: Tree
    client_state: Tree
    num_examples: int
    metrics: dict[str, float]
    client: int = -1  # set by the engine
