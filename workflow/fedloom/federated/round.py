"""One round of federated training: sample, send, train, check, aggregate."""

import os
import time

import torch

from fedloom.common.device import exact_float32
from fedloom.common.tensors import Tree, count_bytes, stack
from fedloom.federated import checks
from fedloom.federated.groups import clients_at_once, groups
from fedloom.federated.state import State
from fedloom.federated.task import Task, cohort
from fedloom.methods.calls import Hooks


def initial_state(task: Task, hooks: Hooks) -> State:
    """Return the state before round 1.

    The wrappers have seen `side_channel` by now, and nobody else reads it: it is dropped.

    Raises:
        FedLoomError: init_server raises, or returns what it may not.
    """
    server = hooks.init_server(task=task)
    checks.check_server(task, server)
    public = {key: value for key, value in server.items() if key != "side_channel"}
    return State.of(State(public).tree())


def download_to(task: Task, hooks: Hooks, state: State, ids: list[int]) -> list[Tree]:
    """Return what the server sends to each client.

    Raises:
        FedLoomError: download raises, or returns what it may not.
    """
    sent = [hooks.download(task=task, server=state.server, client=k) for k in ids]
    checks.check_downloads(task, state.server, ids, sent)
    return sent


def personal_state(task: Task, hooks: Hooks, state: State, client: int) -> Tree:
    """Return a client's personal state, made by `init_client` if it never took part.

    Raises:
        FedLoomError: init_client raises, or returns what it may not.
    """
    known = state.clients.get(client)
    if known is not None:
        return known
    new = hooks.init_client(task=task.at(0), client=client)
    checks.check_personal(task.at(0), "init_client", client, new)
    return new


def train_round(task: Task, hooks: Hooks, state: State) -> tuple[State, dict[str, int | float]]:
    """Train round `task.round`.

    Returns:
        The next state and a row of rounds.parquet. Wall seconds depend on what else runs on the
        machine; `processor_seconds` are those of all threads of this process.

    Raises:
        FedLoomError: a hook raises, or returns what it may not: another shape, say, or NaN.
    """
    started, processor = time.perf_counter(), time.process_time()
    chosen = hooks.select_clients(task=task)
    checks.check_selection(task, chosen)
    ids = sorted(chosen)
    sent = download_to(task, hooks, state, ids)
    personal = [personal_state(task, hooks, state, k) for k in ids]
    updates = []
    for group in groups(len(ids), clients_at_once(task, sent[0], personal[0])):
        states = {ids[k]: personal[k] for k in group}
        checks.check_stackable(task, "init_client", states, state.clients)
        members = cohort(task, list(states), list(states.values()))
        received = stack([sent[k] for k in group])
        returned = hooks.client_update(task=task, received=received, clients=members)
        checks.check_count(task, members, returned)
        updates += returned
    checks.check_updates(task, ids, updates, personal)
    for client, update in zip(ids, updates, strict=True):
        update.client = client
    with exact_float32():
        server = hooks.aggregate(task=task, server=state.server, updates=updates)
    checks.check_server(task, server, state.server)
    clients = state.clients | {u.client: u.client_state for u in updates}
    row = {
        "round": task.round,
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - processor,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "bytes_up": sum(count_bytes(u.payload) for u in updates),
        "bytes_down": sum(count_bytes(tree) for tree in sent),
        "train_loss": sum(u.metrics["train_loss"] for u in updates) / len(updates),
        "clients": len(ids),
    }
    return State.of(State(server, clients).tree()), row
