"""Clients that are away, send nothing, or send what they have when the round ends.

Every random draw belongs to one client and one round. Choices:

- A client whose upload is lost has trained: it keeps its personal state, and its bytes were sent.
- If all uploads of a round would be lost, the one that was least likely to be lost arrives, because
  the server's step needs one.
- A client of partial work completes a share of its steps that is drawn from U(0, 1], but at least
  one step. FedProx draws a number of epochs instead.
- Ids in the trace that do not participate in training are ignored. A round in which no client is
  available stops the run.
"""

from collections.abc import Generator

import torch

import fedloom.toolbox as fl
from fedloom.toolbox import Task, Update

from .options import Options


def draw(task: Task, purpose: str, client: int) -> float:
    """Draw a number from U[0, 1) for a client in this round; `purpose` names the random stream."""
    return torch.rand((), generator=task.generator(f"dropout: {purpose}", client)).item()


@fl.hookimpl(wrapper=True)
def available_clients(task: Task) -> Generator[None, list[int], list[int]]:
    clients = yield
    options: Options = task.wrappers["dropout"]
    trace = options.trace
    if not trace:
        return clients
    return sorted(set(clients) & set(trace[(task.round - 1) % len(trace)]))


@fl.hookimpl(wrapper=True)
def local_work(task: Task, client: int) -> Generator[None, float, float]:
    share = yield
    options: Options = task.wrappers["dropout"]
    if draw(task, "partial", client) < options.partial:
        return share * (1 - draw(task, "work", client))
    return share


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    luck = [draw(task, "lost", update.client) for update in updates]
    options: Options = task.wrappers["dropout"]
    # an update arrives if its number is not below `lost`; the one with the largest always arrives
    least = min(options.lost, max(luck))
    return [update for update, drawn in zip(updates, luck, strict=True) if drawn >= least]
