"""One round of federated training: sample, send, train, check, aggregate."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from fedloom.common.trees import Tree, count_bytes, on_device, stack
from fedloom.federated import check_results, groups
from fedloom.federated.state import Participation, State
from fedloom.federated.task import History, Task, Update, cohort
from fedloom.hooks.loader import Hooks
from fedloom.machine.device import exact_float32


def initial_state(task: Task, hooks: Hooks) -> State:
    """Return the state before round 1, without `side_channel`, which only wrappers read."""
    task = task.at(0)
    server = hooks.init_server(task=task)
    check_results.check_server(task, server)
    public = {key: value for key, value in server.items() if key != "side_channel"}
    return State.of(State(public).tree(), task.data.device)


def download_to(
    task: Task, hooks: Hooks, state: State, ids: list[int]
) -> tuple[list[Tree], list[Tree]]:
    """Return what the server sends to each client, and what the client makes of it."""
    sent = [hooks.download(task=task, server=state.server, client=k) for k in ids]
    pairs = zip(ids, sent, strict=True)
    delivered = [hooks.deliver(task=task, sent=tree, client=k) for k, tree in pairs]
    check_results.check_downloads(task, state.server, ids, sent, delivered)
    return sent, delivered


def personal_state(task: Task, hooks: Hooks, state: State, client: int) -> Tree:
    """Return a client's personal state, made by `init_client` if it never took part.

    A state that is kept lies on the host, a new one on the device.
    """
    if client in state.clients:
        return state.clients[client]
    return hooks.init_client(task=task.at(0), client=client)


def attackers(task: Task, hooks: Hooks) -> list[int]:
    """Return the ids of the clients that attack."""
    ids = hooks.attackers(task=task)
    if ids != []:
        check_results.check_ids(task, "attackers", ids, task.data.participating, "participating")
    return ids


def train_round(task: Task, hooks: Hooks, state: State) -> tuple[State, dict[str, Any]]:
    """Train round `task.round`; return the next state and a row of rounds.parquet.

    The row's `updates` are rows of clients.parquet; its `processor_seconds` are of all threads.
    """
    started, processor = time.perf_counter(), time.process_time()
    ids = select(task, hooks, state)
    task = replace(task, selected=tuple(ids))
    work = {k: hooks.local_work(task=task, client=k) for k in ids}
    for client, share in work.items():
        check_results.check_work(task, client, share)
    updates, sent = collect_updates(task, hooks, state, work)
    with exact_float32():
        accepted = hooks.receive(task=task, server=state.server, updates=updates)
        check_results.check_received(task, updates, accepted)
        accepted = sorted(accepted, key=lambda update: update.client)
        server = hooks.aggregate(task=task, server=state.server, updates=accepted)
    check_results.check_server(task, server, state.server)
    arrived = {update.client for update in accepted}
    attacking = attackers(task, hooks)
    rows = [
        {
            "round": task.round,
            "client_id": update.client,
            "num_examples": update.num_examples,
            "work": work[update.client],
            "received": update.client in arrived,
            "bytes_up": count_bytes(update.payload),
            "bytes_down": count_bytes(tree),
            **({"attacker": update.client in attacking} if attacking else {}),
            **finite(update.metrics),
        }
        for update, tree in zip(updates, sent, strict=True)
    ]
    # without those of clients whose training diverged, and whose update a wrapper left out
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    of_a_guess = math.log(task.num_classes)
    guesses = [row.get("guessing_loss", of_a_guess) for row in rows]
    row = {
        "round": task.round,
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - processor,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "bytes_up": sum(row["bytes_up"] for row in rows),
        "bytes_up_used": sum(row["bytes_up"] for row in rows if row["received"]),
        "bytes_down": sum(row["bytes_down"] for row in rows),
        "train_loss": sum(losses) / len(losses),
        "guessing_loss": fmean(guesses),
        "clients": len(ids),
        "updates": rows,
        **server.get("metrics", {}),
    }
    participation = {}
    for entry in rows:
        before = state.participation.get(entry["client_id"], Participation())
        loss = float(entry["train_loss"]) if entry["received"] else before.train_loss
        participation[entry["client_id"]] = Participation(before.rounds + 1, task.round, loss)
    changes = State(
        server,
        {update.client: update.client_state for update in updates},
        participation,
        {update.client: update.wrapper_state for update in updates if update.wrapper_state},
    )
    return state.after(changes), row


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that are finite; only those of rejected updates may be others."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def collect_updates(
    task: Task, hooks: Hooks, state: State, work: Mapping[int, float]
) -> tuple[list[Update], list[Tree]]:
    """Train clients on their shares of the local steps; return their updates and downloads."""
    data = check_results.check_federation(task, "training_data", hooks.training_data(task=task))
    ids, poisoned = list(work), replace(task, data=data)
    sent, delivered = download_to(task, hooks, state, ids)
    personal = [personal_state(task, hooks, state, k) for k in ids]
    states = dict(zip(ids, personal, strict=True))
    attacking = attackers(task, hooks)
    check_results.check_states(task, "init_client", states, state.clients)
    updates = []
    for group in groups.equal_groups(
        len(ids), groups.clients_at_once(task, delivered[0], personal[0])
    ):
        device = task.data.device
        own = {ids[k]: on_device(personal[k], device) for k in group}
        shares = [work[client] for client in own]
        kept = [on_device(state.wrappers.get(client, {}), device) for client in own]
        members = cohort(poisoned, list(own), list(own.values()), shares, kept)
        received = stack([delivered[k] for k in group])
        returned = hooks.client_update(task=poisoned, received=received, clients=members)
        before = personal[group.start : group.stop]
        check_results.check_updates(task, members, returned, before, attacking)
        updates += returned
    for client, received, update in zip(ids, delivered, updates, strict=True):
        update.client, update.received = client, received
    return updates, sent


def select(task: Task, hooks: Hooks, state: State) -> list[int]:
    """Return the ids of the clients that take part in round `task.round`, ascending."""
    task, everyone = task.selecting(), task.data.participating
    available = hooks.available_clients(task=task)
    check_results.check_ids(task, "available_clients", available, everyone, "participating")
    # those of a stream that have not arrived, or have left, have no images
    available = sorted(client for client in available if len(task.data.train[client]))
    history = History(task.data, state.participation)
    chosen = hooks.select_clients(task=task, available=[*available], history=history)
    check_results.check_ids(task, "select_clients", chosen, available, "available")
    return sorted(chosen)
