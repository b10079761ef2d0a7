"""Check the results of hooks: nothing malformed, and nothing that is not finite, enters a run.

A check raises a FedLoomError that names the hook, the round, the client and the tensor or field.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.common.numbers import is_number
from fedloom.common.tensors import Tree, leaves
from fedloom.federated.checks.trees import (
    CURE,
    call_of,
    require_alike,
    require_finite,
    require_tree,
    wrong,
)
from fedloom.federated.rows import CLIENTS, ROUNDS
from fedloom.federated.task import Cohort, Task, Update

LABELS = ("dataset", "partition", "backbone", "method", "seed")  # columns that `evaluate` adds
CLIENT_COLUMNS = (*LABELS, *CLIENTS.names)
ROUND_COLUMNS = (*LABELS, *ROUNDS.names, "updates")
LARGEST_INT = 2**53  # that a float64 holds exactly


def check_ids(task: Task, hook: str, ids: object, allowed: Sequence[int], words: str) -> None:
    """Check that a hook returns different client ids among `allowed`, which are ascending.

    Args:
        words: names `allowed` in the error.
    """
    if ids is allowed:
        return
    where = call_of(task, hook)
    if not isinstance(ids, list | tuple) or not all(type(k) is int for k in ids):
        raise wrong(where, "must return a list of client ids (int)", ids)
    if not ids:
        raise FedLoomError(f"{where}: must return at least one client")
    if len(set(ids)) < len(ids):
        twice = next(k for k in ids if ids.count(k) > 1)
        raise FedLoomError(f"{where}: must return different clients, got {twice} twice")
    for client in sorted(ids):
        position = bisect_left(allowed, client)  # federations may have thousands of clients
        if position == len(allowed) or allowed[position] != client:
            raise FedLoomError(f"{where}: must return {words}, got {client}")


def check_work(task: Task, client: int, share: object) -> None:
    """Check what local_work returns for one client."""
    if not is_number(share) or not 0 < share <= 1:  # type: ignore[operator]
        words = "must return a share of the local steps, above 0 and at most 1"
        raise wrong(call_of(task, "local_work", client), words, share)


def check_personal(task: Task, hook: str, client: int, state: Tree) -> None:
    """Check the personal state of one client that init_client or unseen_client_state returns."""
    where = call_of(task, hook, client)
    require_finite(require_tree(where, "the client's state", state))


def check_stackable(
    task: Task, hook: str, states: Mapping[int, Tree], trained: Collection[int]
) -> None:
    """Check that a cohort's personal states, by client, have the same keys, types and scalars.

    The hook made the states of clients that are not in `trained`.
    """
    first = next((client for client in states if client in trained), next(iter(states)))
    for client, state in states.items():
        where, other = call_of(task, hook, client), f"the state of client {first}"
        require_alike(f"{where}: the client's state", state, states[first], other, stacked=True)


def check_personalized(task: Task, clients: Cohort, states: Tree) -> None:
    """Check the personal states of a cohort that personalize returns."""
    where = call_of(task, "personalize", *clients.ids)
    items = require_tree(where, "the clients' state", states)
    for path, value in leaves(states):
        if isinstance(value, Tensor) and value.shape[:1] != (len(clients),):
            words = f"the clients' state '{path}' must lead with the {len(clients)} clients"
            raise wrong(where, words, value)
    require_finite(items)


def check_server(task: Task, server: Tree, before: Tree | None = None) -> None:
    """Check the server's state that init_server, or aggregate after `before`, returns.

    From round to round keys and types stay, and all axes but the first: a pool may grow.
    """
    where = call_of(task, "init_server" if before is None else "aggregate")
    items = require_tree(where, "the server's state", server)
    metrics = server.get("metrics", {})
    if not isinstance(metrics, dict):
        raise wrong(where, "the server's 'metrics' must be a dict of plain numbers", metrics)
    for name, value in metrics.items():
        if name in ROUND_COLUMNS:
            line = f"has the key {name!r}, which is a column of rounds.parquet; use another name"
            raise FedLoomError(f"{where}: the server's 'metrics' {line}")
        if not is_number(value):
            raise wrong(where, f"the server's metrics['{name}'] must be a plain number", value)
    if before is not None:
        words = "the state that it was given"
        require_alike(f"{where}: the server's state", server, before, words, grows=True)
    require_finite(items)


def check_downloads(task: Task, server: Tree, ids: Sequence[int], sent: Sequence[Tree]) -> None:
    """Check what download returns for every client of `ids`."""
    checked = {id(value) for _, value in leaves(server)}
    new: list[tuple[str, Any]] = []
    for client, tree in zip(ids, sent, strict=True):
        items = require_tree(call_of(task, "download", client), "the download", tree)
        new += [item for item in items if id(item[1]) not in checked]
    require_finite(new)


def check_delivered(
    task: Task, ids: Sequence[int], sent: Sequence[Tree], delivered: Sequence[Tree]
) -> None:
    """Check what deliver returns for every client of `ids`; all must receive the same keys."""
    checked = {id(value) for tree in sent for _, value in leaves(tree)}
    new: list[tuple[str, Any]] = []
    for client, packed, tree in zip(ids, sent, delivered, strict=True):
        hook, what = "deliver", "the delivery"
        if tree is packed:
            hook, what = "download", "the download"
        where = call_of(task, hook, client)
        items = require_tree(where, what, tree)
        first = f"the download of client {ids[0]}"
        require_alike(f"{where}: {what}", tree, delivered[0], first, stacked=True)
        new += [item for item in items if id(item[1]) not in checked]
    require_finite(new)


def check_loss(
    task: Task, clients: Sequence[int], mask: Tensor, values: object, extras: object
) -> Tensor:
    """Check and return a loss [K, B] for the clients still training, and its extras [K, B, ...].

    The batch's `mask` is [K, B].
    """
    where, shape = call_of(task, "train_locally", *clients), list(mask.shape)
    if not isinstance(values, Tensor) or values.shape != mask.shape:
        words = f"its loss must be one number per client and image, a tensor {shape}"
        raise wrong(where, words, values)
    if not values.is_floating_point() or not values.requires_grad:
        line = "its loss must depend on the parameters that are trained, but has no gradient"
        raise FedLoomError(f"{where}: {line}")
    if not isinstance(extras, dict):
        raise wrong(where, "its loss may return a dict of counters as the second of two", extras)
    for name, value in extras.items():
        if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
            words = f"its loss must give '{name}' per client and image, as a tensor {shape}"
            raise wrong(where, f"{words} or with more axes behind", value)
    return values


def check_count(task: Task, clients: Cohort, updates: object) -> None:
    """Check that client_update returns a list with one Update per client of the cohort."""
    where = call_of(task, "client_update", *clients.ids)
    count = len(_check_list(where, updates))
    if count != len(clients):
        line = f"must return one Update per client, got {count} for {len(clients)} clients"
        raise FedLoomError(f"{where}: {line}")


def _check_list(where: str, updates: object) -> Sequence[Update]:
    """Require a list of Updates, and return it."""
    words = "must return a list of Updates"
    if not isinstance(updates, list | tuple):
        raise wrong(where, words, updates)
    for update in updates:
        if not isinstance(update, Update):
            raise wrong(where, f"{words}, but one is another object", update)
    return updates


def check_updates(
    task: Task, ids: Sequence[int], updates: Sequence[Update], states: Sequence[Tree]
) -> None:
    """Check every client's Update of one round, by itself; `states` are those before the round."""
    numbers: list[tuple[str, Any]] = []
    for client, update, before in zip(ids, updates, states, strict=True):
        where = call_of(task, "client_update", client)
        numbers += require_tree(where, "upload", update.payload)
        numbers += require_tree(where, "client_state", update.client_state)
        require_tree(where, "side_channel", update.side_channel)
        require_tree(where, "wrapper_state", update.wrapper_state)
        other = "the client's state before"
        require_alike(f"{where}: client_state", update.client_state, before, other)
    require_finite(numbers)
    for client, update in zip(ids, updates, strict=True):
        _check_fields(call_of(task, "client_update", client), update)


def check_received(task: Task, updates: Sequence[Update], received: object) -> None:
    """Check what receive makes of the updates of one round, and that they fit to each other."""
    where = call_of(task, "receive")
    accepted = _check_list(where, received)
    if not accepted:
        raise FedLoomError(f"{where}: must return at least one Update")
    left = {update.client for update in updates}
    for client in [update.client for update in accepted]:
        if client not in left:
            line = "must return at most one Update per client of the round, got one too many of"
            cure = "make new ones with dataclasses.replace(update, ...)"
            raise FedLoomError(f"{where}: {line} client {client}; {cure}")
        left.remove(client)
    sent = {id(update) for update in updates}
    numbers: list[tuple[str, Any]] = []
    for update in accepted:
        as_sent = id(update) in sent
        where = call_of(task, "client_update" if as_sent else "receive", update.client)
        if not as_sent:
            numbers += require_tree(where, "upload", update.payload)
            _check_fields(where, update)
        other = f"the upload of client {accepted[0].client}"
        require_alike(f"{where}: upload", update.payload, accepted[0].payload, other)
    require_finite(numbers)


def _check_fields(where: str, update: Update) -> None:
    """Check an Update's plain numbers."""
    if type(update.num_examples) is not int or update.num_examples < 1:
        raise wrong(where, "num_examples must be a positive int", update.num_examples)
    if not isinstance(update.metrics, dict) or "train_loss" not in update.metrics:
        raise wrong(where, "metrics must be a dict with the number 'train_loss'", update.metrics)
    for name, value in update.metrics.items():
        if not isinstance(name, str) or not name or name in CLIENT_COLUMNS:
            line = "a metric is a column of clients.parquet and may have any name but"
            columns = ", ".join(CLIENT_COLUMNS)
            raise FedLoomError(f"{where}: metrics has the key {name!r}; {line} {columns}")
        if not is_number(value):
            raise wrong(where, f"metrics['{name}'] must be a plain number", value)
        if isinstance(value, int) and abs(value) > LARGEST_INT:
            line = "is beyond 2^53, where a column's numbers are no longer exact; make it a float"
            raise FedLoomError(f"{where}: metrics['{name}'] {line}")
    require_finite((f"{where}: metrics '{name}'", value) for name, value in update.metrics.items())


def check_logits(task: Task, clients: Cohort, labels: Tensor, logits: object) -> Tensor:
    """Check and return what predict returns for a batch with these labels [K, B]."""
    where, shape = call_of(task, "predict", *clients.ids), [*labels.shape, task.num_classes]
    words = f"must return logits {shape} (clients, images, classes)"
    if not isinstance(logits, Tensor) or list(logits.shape) != shape:
        if logits is None:
            words += "; only the server's model (clients.is_server_model) may have none"
        raise wrong(where, words, logits)
    if not logits.is_floating_point() or logits.device != labels.device:
        raise FedLoomError(
            f"{where}: must return floating-point logits on {labels.device}, got {logits.dtype} "
            f"on {logits.device}"
        )
    return logits


def check_scores(
    task: Task, clients: Cohort, bad: Sequence[float], losses: Sequence[float]
) -> None:
    """Check that all logits were finite, and the test losses too, which may still overflow.

    `bad` is each client's number of batches with other logits, `losses` its cross-entropy [K].
    """
    for client, batches, loss in zip(clients.ids, bad, losses, strict=True):
        if batches or not math.isfinite(loss):
            fault = "not finite (NaN or infinity)" if batches else "too large for a finite loss"
            where = call_of(task, "predict", client)
            raise NotFiniteError(f"{where}: predictions are {fault}; {CURE}")


def check_artefact(task: Task, hook: str, name: str, table: object) -> None:
    """Check the table of `hook`, artefact or audit_table: a dict of equally long lists."""
    where = call_of(task, hook)
    if table is None:
        raise FedLoomError(f"{where}: the method gives no '{name}' with these options")
    if not isinstance(table, dict) or not table:
        raise wrong(where, f"must return '{name}' as a dict of lists", table)
    for column, values in table.items():
        if not isinstance(column, str) or not isinstance(values, list):
            raise wrong(where, f"column {column!r} of '{name}' must be a list", values)
        try:
            pa.array(values)
        except pa.ArrowException as error:
            line = f"column '{column}' of '{name}' cannot be written ({error})"
            raise FedLoomError(f"{where}: {line}") from None
    lengths = {column: len(values) for column, values in table.items()}
    if len(set(lengths.values())) > 1:
        raise FedLoomError(f"{where}: the columns of '{name}' differ in length: {lengths}")
