"""Default hooks, for methods that leave them out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.common.seeds import torch_generator
from fedloom.common.tensors import Tree, tensor_map
from fedloom.hooks.hookspecs import hookimpl

if TYPE_CHECKING:
    from fedloom.data.federation import Federation
    from fedloom.federated.task import Task, Update


def sample_clients(available: Sequence[int], count: int, seed: int, number: int) -> list[int]:
    """Draw `count` clients for round `number`, uniformly without replacement; ids ascending.

    If fewer are available, all of them.
    """
    generator = torch_generator(seed, "sampling", number)
    order = torch.randperm(len(available), generator=generator)
    return sorted(available[k] for k in order[:count].tolist())


def mean(updates: "list[Update]", weighted: bool = False) -> Tree:
    """Average the payloads' `params` over clients.

    Args:
        weighted: weigh each client by its number of training images, as McMahan et al. ("FedAvg",
            AISTATS 2017) do, else all clients alike.
    """
    weights = [update.num_examples if weighted else 1 for update in updates]
    total = sum(weights)

    def average(*values: Tensor) -> Tensor:
        terms = (w / total * value for w, value in zip(weights, values, strict=True))
        return sum(terms, start=torch.zeros(()))

    return tensor_map(average, *(update.payload["params"] for update in updates))


@hookimpl
def init_client(task: "Task", client: int) -> Tree:
    """Keep nothing on the client."""
    return {}


@hookimpl
def available_clients(task: "Task") -> list[int]:
    """Let every participating client be selected."""
    return task.data.participating


@hookimpl
def select_clients(task: "Task", available: list[int]) -> list[int]:
    """Sample among the available clients, see `sample_clients`."""
    return sample_clients(available, task.clients_per_round, task.seed, task.round)


@hookimpl
def local_work(task: "Task", client: int) -> float:
    """Let the client do all its steps."""
    return 1.0


@hookimpl
def attackers(task: "Task") -> list[int]:
    """Let nobody attack."""
    return []


@hookimpl
def training_data(task: "Task") -> "Federation":
    """Train on the data as they are."""
    return task.data


@hookimpl
def download(task: "Task", server: Tree, client: int) -> Tree:
    """Send the trained parameters, and the constants."""
    return {key: server[key] for key in ("params", "constants") if key in server}


@hookimpl
def deliver(task: "Task", sent: Tree, client: int) -> Tree:
    """Take the download as it is."""
    return sent


@hookimpl
def receive(task: "Task", server: Tree, updates: "list[Update]") -> "list[Update]":
    """Take all updates as they were sent."""
    return updates


@hookimpl
def aggregate(task: "Task", server: Tree, updates: "list[Update]") -> Tree:
    """Average what the clients trained, weighted as method.toml's `aggregation` says."""
    if task.aggregation is None:
        raise FedLoomError(
            f"{task.method}: method.toml declares no aggregation with these options; declare it, "
            "or write the hook aggregate"
        )
    return {**server, "params": mean(updates, weighted=task.aggregation == "weighted")}
