"""One round of federated training: select clients, send, train, check and aggregate."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from fedloom.common.trees import Tree, count_bytes, on_device, stack
from fedloom.federated import check_results, groups
from fedloom.federated.logit_offsets import adding_to_logits
from fedloom.federated.rows import ClientRow, RoundRow
from fedloom.federated.state import Participation, State
from fedloom.federated.task import Cohort, History, Task, Update, cohort
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.device import exact_float32


def initial_state(task: Task, hooks: Hooks) -> State:
    """Return the state before round 1.

    `side_channel` is left out, because only wrappers read it.
    """
    task = task.at(0)
    server = hooks.init_server(task=task)
    check_results.check_server(task, server)
    public = {key: value for key, value in server.items() if key != "side_channel"}
    return State.from_tree(State(public).tree(), task.data.device)


def download_to(
    task: Task, hooks: Hooks, state: State, ids: list[int]
) -> tuple[list[Tree], list[Tree]]:
    """Return the download of each client as it is sent, and as `deliver` unpacks it."""
    sent = [hooks.download(task=task, server=state.server, client=k) for k in ids]
    delivered = [
        hooks.deliver(task=task, sent=tree, client=k) for k, tree in zip(ids, sent, strict=True)
    ]
    check_results.check_downloads(task, state.server, ids, sent, delivered)
    return sent, delivered


def personal_state(task: Task, hooks: Hooks, state: State, client: int) -> Tree:
    """Return a client's personal state; `init_client` makes the state of one that never took part.

    A stored state is on the CPU, and a new one is on the device.
    """
    if client in state.clients:
        return state.clients[client]
    return hooks.init_client(task=task.at(0), client=client)


def attacking_clients(task: Task, hooks: Hooks) -> list[int]:
    """Return the ids of the clients that attack; [] if there is no attack."""
    ids = hooks.attackers(task=task)
    if ids != []:
        check_results.check_ids(task, "attackers", ids, task.data.participating, "participating")
    return ids


@dataclass(frozen=True)
class _RoundUpdates:
    """What the server gets from the clients of a round, and what they did.

    Attributes:
        updates: one update per client, ascending by client id.
        sent: what the server had sent to each client.
        work: the share of its local steps that each client completed, by client id.
    """

    updates: list[Update]
    sent: list[Tree]
    work: dict[int, float]


def train_round(task: Task, hooks: Hooks, state: State) -> tuple[State, RoundRow]:
    """Train round `task.round`; return the next state and a row of rounds.parquet."""
    started = time.perf_counter()
    processor_started = time.process_time()

    # collect the updates of the selected clients
    ids = select_for_round(task, hooks, state)
    task = replace(task, selected=tuple(ids))
    collected = _collect(task, hooks, state, ids)

    # aggregate the updates that arrive
    server, arrived = _aggregate(task, hooks, state, collected.updates)

    # describe the round
    updates = _client_rows(task, hooks, collected, arrived)
    row = _round_row(
        task,
        server,
        updates,
        seconds=time.perf_counter() - started,
        processor_seconds=time.process_time() - processor_started,
    )
    return state.after(_changes(state, server, collected.updates, updates)), row


def _collect(task: Task, hooks: Hooks, state: State, ids: list[int]) -> _RoundUpdates:
    """Train every client on its share of the local steps (local_work)."""
    work = {client: hooks.local_work(task=task, client=client) for client in ids}
    for client, share in work.items():
        check_results.check_work(task, client, share)
    updates, sent = collect_updates(task, hooks, state, work)
    return _RoundUpdates(updates, sent, work)


def _aggregate(
    task: Task, hooks: Hooks, state: State, updates: list[Update]
) -> tuple[Tree, set[int]]:
    """Return the server's next state, and the ids of the clients whose updates it got."""
    with exact_float32():
        accepted = hooks.receive(task=task, server=state.server, updates=updates)
        check_results.check_received(task, updates, accepted)
        accepted = sorted(accepted, key=lambda update: update.client)
        server = hooks.aggregate(task=task, server=state.server, updates=accepted)
    check_results.check_server(task, server, state.server)
    return server, {update.client for update in accepted}


def _client_rows(
    task: Task, hooks: Hooks, collected: _RoundUpdates, arrived: set[int]
) -> list[ClientRow]:
    """Return a row of clients.parquet for each client of the round.

    `arrived` has the ids of the clients whose updates the server got.
    """
    attacking = attacking_clients(task, hooks)

    # one row per client, in ascending order of ids
    rows: list[ClientRow] = []
    for update, tree in zip(collected.updates, collected.sent, strict=True):
        attacks: bool | None = None
        if attacking:
            attacks = update.client in attacking

        row = ClientRow(
            round=task.round,
            client_id=update.client,
            num_examples=update.num_examples,
            work=collected.work[update.client],
            received=update.client in arrived,
            bytes_up=count_bytes(update.payload),
            bytes_down=count_bytes(tree),
            attacker=attacks,
            metrics=_finite_metrics(update.metrics),
        )
        rows.append(row)
    return rows


def _round_row(
    task: Task, server: Tree, updates: list[ClientRow], seconds: float, processor_seconds: float
) -> RoundRow:
    """Return the row of rounds.parquet, from the rows of its clients and the server's new state."""
    # a client whose training diverged has no loss: a wrapper left out its update
    losses = [row.metrics["train_loss"] for row in updates if "train_loss" in row.metrics]
    loss_of_a_guess = math.log(task.num_classes)
    guesses = [row.metrics.get("guessing_loss", loss_of_a_guess) for row in updates]

    return RoundRow(
        round=task.round,
        seconds=seconds,
        processor_seconds=processor_seconds,
        threads=torch.get_num_threads(),
        cores=os.cpu_count() or 1,
        bytes_up=sum(row.bytes_up for row in updates),
        bytes_up_used=sum(row.bytes_up for row in updates if row.received),
        bytes_down=sum(row.bytes_down for row in updates),
        train_loss=sum(losses) / len(losses),
        guessing_loss=fmean(guesses),
        clients=len(updates),
        updates=updates,
        metrics=server.get("metrics", {}),
    )


def _changes(state: State, server: Tree, updates: list[Update], rows: list[ClientRow]) -> State:
    """Return what the round changes: the server's state and the states of the round's clients."""
    # what the server remembers of clients; if an update was lost, the loss stays the one before
    participation: dict[int, Participation] = {}
    for row in rows:
        before = state.participation.get(row.client_id, Participation())
        loss = before.train_loss
        if row.received:
            loss = float(row.metrics["train_loss"])
        participation[row.client_id] = Participation(before.rounds + 1, row.round, loss)

    # what each client and its wrappers keep for the next round
    clients: dict[int, Tree] = {}
    wrappers: dict[int, Tree] = {}
    for update in updates:
        clients[update.client] = update.client_state
        if update.wrapper_state:
            wrappers[update.client] = update.wrapper_state

    return State(server, clients, participation, wrappers)


def _finite_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that are finite. Only rejected updates may have others."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def collect_updates(
    task: Task, hooks: Hooks, state: State, work: Mapping[int, float]
) -> tuple[list[Update], list[Tree]]:
    """Train clients; return their updates, and what the server had sent to each of them.

    `work` has the share of its local steps that each client completes, by client id.
    """
    # clients train on data that wrappers may have poisoned
    data = check_results.check_federation(task, "training_data", hooks.training_data(task=task))
    training_task = replace(task, data=data)
    device = task.data.device
    ids = list(work)

    # what each client receives, and what it kept from its last round
    sent, delivered = download_to(task, hooks, state, ids)
    personal = [personal_state(task, hooks, state, client) for client in ids]
    attacking = attacking_clients(task, hooks)
    states = dict(zip(ids, personal, strict=True))
    check_results.check_states(task, "init_client", states, state.clients)

    # train the clients in groups, as large as is fast and as fits into memory
    updates: list[Update] = []
    at_once = groups.clients_trained_at_once(task, delivered[0], personal[0])
    for group in groups.equal_groups(len(ids), at_once):
        # move what the clients of this group have kept to the device
        group_ids = [ids[k] for k in group]
        members = cohort(
            training_task,
            group_ids,
            [on_device(personal[k], device) for k in group],
            [work[client] for client in group_ids],
            [on_device(state.wrappers.get(client, {}), device) for client in group_ids],
        )

        members = with_training_offsets(training_task, hooks, members)

        # train the group, and check what its clients send and keep
        received = stack([delivered[k] for k in group])
        with adding_to_logits(members.logit_offsets):
            returned = hooks.client_update(task=training_task, received=received, clients=members)
        before = personal[group.start : group.stop]
        check_results.check_updates(task, members, returned, before, attacking)
        updates += returned

    # fill in the fields of an update that belong to the runtime
    for client, received, update in zip(ids, delivered, updates, strict=True):
        update.client = client
        update.received = received
    return updates, sent


def with_training_offsets(task: Task, hooks: Hooks, clients: Cohort) -> Cohort:
    """Return the cohort with what wrappers add to the logits of its clients in training."""
    offsets = hooks.training_offsets(task=task, clients=clients)
    check_results.check_offsets(task, "training_offsets", clients, offsets)
    return replace(clients, logit_offsets=offsets)


def select_for_round(task: Task, hooks: Hooks, state: State) -> list[int]:
    """Return the ids of the clients that take part in round `task.round`, ascending."""
    task = task.selecting()
    everyone = task.data.participating
    available = hooks.available_clients(task=task)
    check_results.check_ids(task, "available_clients", available, everyone, "participating")

    # leave out clients without images: in a stream, they have not arrived yet, or have left
    available = sorted(client for client in available if len(task.data.train[client]))
    history = History(task.data, state.participation)
    chosen = hooks.select_clients(task=task, available=[*available], history=history)
    check_results.check_ids(task, "select_clients", chosen, available, "available")
    return sorted(chosen)
