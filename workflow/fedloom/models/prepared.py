"""Prepare the model of a run's server, or of a client, as an evaluation prepares it."""

from typing import Any

import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.trees import Tree, leaves, tensor_map
from fedloom.federated.cohorts import all_answer_the_same, personalize_cohort, prepare_clients
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task
from fedloom.hooks.run_hooks import Hooks

# the most clients that an error lists
MOST_CLIENTS = 10


@torch.no_grad()
def prepare_model(
    task: Task[Any], hooks: Hooks, state: State, client: int | None
) -> tuple[Tree, Cohort]:
    """Return what the model received [1, ...], and the cohort of it alone.

    Args:
        task: the run's task in the round of the state.
        state: the run's state after that round.
        client: the client's id; None: the server's model.

    Raises:
        FedLoomError: there is no such client, it has no model of its own, or it never trained.
    """
    if client is None:
        return prepare_clients(task, hooks, state, [SERVER_MODEL])

    # the client's model, personalised if the method does that
    known = task.data.num_clients
    if not 0 <= client < known:
        raise FedLoomError(f"client: must be from 0 to {known - 1}, got {client}")
    received, clients = prepare_clients(task, hooks, state, [client])
    personal = personalize_cohort(task, hooks, received, clients)
    if personal is not None:
        return received, personal

    # without a state of its own, it must at least answer otherwise than the server
    if not hooks.takes("predict", "clients"):
        server_model, _ = prepare_clients(task, hooks, state, [SERVER_MODEL])
        if all_answer_the_same(server_model, received, clients):
            raise FedLoomError(
                f"{task.method} has no model of a client's own: all clients answer as the server's "
                "model; leave out client"
            )

    if client not in state.clients and _has_first_state(task, hooks, state, received, clients):
        raise FedLoomError(
            f"client {client} never trained, so that it has no model of its own; choose one of "
            f"those that did ({_some(list(state.clients))})"
        )
    return received, clients


def _has_first_state(
    task: Task[Any], hooks: Hooks, state: State, received: Tree, clients: Cohort
) -> bool:
    """Return True if a client that never trained has a state, and it is that before training.

    The hook `unseen_client_state` may give such clients another state.
    """
    if not dict(leaves(clients.state)):
        return False
    own = hooks.unseen_client_state(
        task=task,
        client=clients.ids[0],
        states=state.personal,
        received=tensor_map(lambda value: value[0], received),
    )
    return own is None


def _some(clients: list[int]) -> str:
    """Return the ids of clients as text, or the first ones of many."""
    listed = ", ".join(map(str, clients[:MOST_CLIENTS]))
    if len(clients) > MOST_CLIENTS:
        return f"{listed}, ... {len(clients)} in all"
    return listed
