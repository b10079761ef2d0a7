"""Check the results of hooks, so that nothing malformed, NaN or infinite enters a run.

A check raises a FedLoomError, which names the hook, the round, the client and the tensor or field.
"""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from torch import Tensor

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.run_tables import CLIENTS_SCHEMA, ROUNDS_SCHEMA
from fedloom.common.schema import is_number
from fedloom.common.trees import Tree, leaves
from fedloom.data.federation import Federation
from fedloom.federated.check_trees import (
    NamedLeaf,
    require_alike,
    require_finite,
    require_tree,
    unexpected_value,
)
from fedloom.federated.task import Cohort, Task, Update
from fedloom.hooks.plugin_code import describe_call

# columns that the job `evaluate` adds
RUN_LABEL_NAMES = ("dataset", "partition", "backbone", "method", "seed")
CLIENT_COLUMNS = (*RUN_LABEL_NAMES, *CLIENTS_SCHEMA.names)
ROUND_COLUMNS = (*RUN_LABEL_NAMES, *ROUNDS_SCHEMA.names, "updates")
LEAVE_OUT = "its wrapper declares rejects_non_finite; leave such an update out in receive"


def describe_hook_call(task: Task, hook: str, *ids: int) -> str:
    """Return how an error names the call of a hook in round `task.round`, for clients `ids`."""
    return describe_call([task.method, *task.wrappers], hook, task.round, ids)


def check_ids(
    task: Task, hook: str, ids: object, allowed: Sequence[int], allowed_name: str
) -> None:
    """Check that a hook returns ids that are all different and among the `allowed` ones.

    `allowed_name` is the word for the allowed clients in an error, such as "available".
    """
    where = describe_hook_call(task, hook)
    if not isinstance(ids, list | tuple) or not all(type(k) is int for k in ids):
        raise unexpected_value(f"{where}: must return a list of client ids (int)", ids)
    if not ids or len(set(ids)) < len(ids):
        raise FedLoomError(
            f"{where}: must return at least one client, and none twice, got {str(ids)[:80]}"
        )
    for client in sorted(set(ids).difference(allowed)):
        raise FedLoomError(f"{where}: must return {allowed_name} clients, got {client}")


def check_work(task: Task, client: int, share: object) -> None:
    """Check the share that local_work returns for one client."""
    if not is_number(share) or not 0 < share <= 1:  # type: ignore[operator]
        where = describe_hook_call(task, "local_work", client)
        raise unexpected_value(
            f"{where}: must return a share of the local steps, above 0 and at most 1", share
        )


def check_federation(task: Task, hook: str, data: object) -> Federation:
    """Check the result of training_data or triggered, and return it."""
    if not isinstance(data, Federation):
        raise unexpected_value(
            f"{describe_hook_call(task, hook)}: must return a Federation, such as task.data", data
        )
    return data


def check_states(
    task: Task, hook: str, states: Mapping[int, Tree], trained: Collection[int]
) -> None:
    """Check that the personal states of clients (by id) have the same keys, types and numbers.

    The states of the clients in `trained` come from training. The hook made all others.
    """
    # compare all states with the first, preferably one that comes from training
    first = next((client for client in states if client in trained), next(iter(states)))

    # a state that comes from training was checked when training returned it
    items: list[NamedLeaf] = []
    for client, state in states.items():
        where = f"{describe_hook_call(task, hook, client)}: the client's state"
        if client not in trained:
            items += require_tree(where, state)
        require_alike(where, state, states[first], f"the state of client {first}", stacked=True)
    require_finite(items)


def check_personalized(task: Task, clients: Cohort, states: Tree) -> None:
    """Check the personal states [K, ...] that personalize returns for a cohort."""
    where = f"{describe_hook_call(task, 'personalize', *clients.ids)}: the clients' state"
    items = require_tree(where, states)
    for name, value in items:
        if isinstance(value, Tensor) and value.shape[:1] != (len(clients),):
            raise unexpected_value(
                f"{name} must have the {len(clients)} clients as its first axis", value
            )
    require_finite(items)


def check_server(task: Task, server: Tree, before: Tree | None = None) -> None:
    """Check the server's state that init_server returns, or aggregate for the state `before`.

    From round to round, keys and types stay the same, and so do all axes of a tensor but the first:
    a pool of prompts may grow.
    """
    hook = "init_server" if before is None else "aggregate"
    where = f"{describe_hook_call(task, hook)}: the server's state"
    items = require_tree(where, server)

    # the metrics, which become columns
    metrics = server.get("metrics", {})
    if not isinstance(metrics, dict):
        raise unexpected_value(f"{where} 'metrics' must be a dict of plain numbers", metrics)
    _require_columns(f"{where} metrics", metrics, ROUND_COLUMNS, "rounds.parquet")

    # the same keys and types as in the round before
    if before is not None:
        require_alike(where, server, before, "the state that it was given", grows=True)
    require_finite(items)


def _require_columns(where: str, metrics: dict, taken: Sequence[str], table: str) -> None:
    """Require plain numbers by name, which become further columns of `table`.

    No name may be among `taken`, the columns that the table already has.
    """
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or name in taken or not is_number(value):
            raise unexpected_value(
                f"{where}[{name!r}] must be a plain number whose name is not a column of {table}",
                value,
            )


def check_downloads(
    task: Task, server: Tree, ids: Sequence[int], sent: Sequence[Tree], delivered: Sequence[Tree]
) -> None:
    """Check the results of download and deliver; all clients must receive the same keys and shapes.

    Args:
        server: the server's state.
        ids: the ids of the clients.
        sent: what download returned for each client.
        delivered: what deliver returned for each client.
    """
    items: list[NamedLeaf] = []
    for client, packed, tree in zip(ids, sent, delivered, strict=True):
        # the download as it is sent, and as wrappers unpack it
        where = f"{describe_hook_call(task, 'download', client)}: the download"
        items += require_tree(where, packed)
        if tree is not packed:
            where = f"{describe_hook_call(task, 'deliver', client)}: the delivery"
            items += require_tree(where, tree)

        first = f"the download of client {ids[0]}"
        require_alike(where, tree, delivered[0], first, stacked=True)

    # leave out tensors of the server's state: they were checked when a hook returned that state
    checked = {id(value) for _, value in leaves(server)}
    require_finite(item for item in items if id(item[1]) not in checked)


def check_loss(
    task: Task, clients: Sequence[int], mask: Tensor, result: object, counters: Collection[str]
) -> tuple[Tensor, Tree]:
    """Check what a loss function of `train_locally` returns, and return (losses, extras).

    Args:
        clients: ids of the K clients that are still training.
        mask: which images of the batch count, [K, B].
        result: the losses [K, B], or a tuple of the losses and extras {name: [K, B, ...]}.
        counters: the names of the counters that extras may add to.
    """
    where = f"{describe_hook_call(task, 'train_locally', *clients)}: its loss"
    shape = list(mask.shape)

    # the losses may come alone, or with extras
    values = result
    extras: object = {}
    if isinstance(result, tuple) and len(result) == 2:
        values, extras = result

    # the losses, which must be differentiable in the parameters
    if not isinstance(values, Tensor) or values.shape != mask.shape:
        raise unexpected_value(
            f"{where} must be one number per client and image, a tensor {shape}", values
        )
    if not values.requires_grad:
        raise FedLoomError(f"{where} must depend on the parameters that are trained")

    # the extras, which are added to counters
    if not isinstance(extras, dict):
        raise unexpected_value(
            f"{where} must return the losses, or the losses and a dict of counters", extras
        )

    for name, value in extras.items():
        if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
            raise unexpected_value(
                f"{where} must return '{name}' for each client and image, with a shape that begins "
                f"with {shape}",
                value,
            )
        if name not in ("reported_loss", *counters):
            raise FedLoomError(
                f"{where} adds to '{name}', which train_locally was not given among its counters"
            )
    return values, dict(extras)


def _require_updates(where: str, updates: object) -> None:
    """Require a list of Updates."""
    if not isinstance(updates, list | tuple):
        raise unexpected_value(f"{where}: must return a list of Updates", updates)
    for update in updates:
        if not isinstance(update, Update):
            raise unexpected_value(f"{where}: must return a list that holds only Updates", update)


def check_updates(
    task: Task,
    clients: Cohort,
    updates: Sequence[Update],
    states: Sequence[Tree],
    attacking: Collection[int] = (),
) -> None:
    """Check what client_update returns for a cohort.

    Uploads, metrics and personal states must be finite. With a wrapper that leaves out uploads that
    are not finite (`rejects_non_finite`), uploads and metrics may hold NaN or infinity. The error
    names the client, and says if the client attacks.

    Args:
        clients: the cohort.
        updates: the result of client_update.
        states: the personal state of each client before the training.
        attacking: ids of the clients that attack.
    """
    where = describe_hook_call(task, "client_update", *clients.ids)
    _require_updates(where, updates)
    if len(updates) != len(clients):
        raise FedLoomError(
            f"{where}: must return one Update per client, "
            f"got {len(updates)} for {len(clients)} clients"
        )

    # collect what must be finite, separately for attackers
    items: list[NamedLeaf] = []
    of_attackers: list[NamedLeaf] = []
    for client, update, before in zip(clients.ids, updates, states, strict=True):
        where = describe_hook_call(task, "client_update", client)

        # what the client uploads
        sent = _sent(where, update)
        if client in attacking:
            must_be_finite = of_attackers
        else:
            must_be_finite = items
        if not task.declared.rejects_non_finite:
            must_be_finite += sent

        # what the client keeps, and what only wrappers read
        items += require_tree(f"{where}: client_state", update.client_state)
        require_tree(f"{where}: side_channel", update.side_channel)
        require_tree(f"{where}: wrapper_state", update.wrapper_state)
        require_alike(
            f"{where}: client_state", update.client_state, before, "the client's state before"
        )

    require_finite(items)
    require_finite(
        of_attackers,
        "the client attacks: make the attack weaker, or list a wrapper behind it that rejects such "
        "an update, as krum and trimmed_mean do",
    )


def check_received(task: Task, updates: Sequence[Update], accepted: Sequence[Update]) -> None:
    """Check the updates that receive returns (`accepted`) for the `updates` of a round.

    At most one update of each client may be left, and all uploads must be alike and finite.
    """
    where = describe_hook_call(task, "receive")
    _require_updates(where, accepted)

    # at most one update of each client that trained, and none of other clients
    clients = [update.client for update in accepted]
    strangers = set(clients) - {update.client for update in updates}
    if not clients or len(set(clients)) < len(clients) or strangers:
        raise FedLoomError(
            f"{where}: must return at least one Update, and at most one of each client of the "
            f"round, got those of clients {clients}; "
            "make new ones with dataclasses.replace(update, ...)"
        )

    # all uploads must be alike, and finite
    sent = {id(update) for update in updates}
    items: list[NamedLeaf] = []
    for update in accepted:
        # an error names the hook that made the update
        is_new = id(update) not in sent
        hook = "receive" if is_new else "client_update"
        where = describe_hook_call(task, hook, update.client)

        # the result of client_update was checked already, unless it was allowed to hold NaN
        if is_new or task.declared.rejects_non_finite:
            items += _sent(where, update)

        other = f"the upload of client {clients[0]}"
        require_alike(f"{where}: upload", update.payload, accepted[0].payload, other)

    if task.declared.rejects_non_finite:
        require_finite(items, LEAVE_OUT)
    else:
        require_finite(items)


def _sent(where: str, update: Update) -> list[NamedLeaf]:
    """Check an update's upload, metrics and num_examples.

    Return all values that must be finite, as (name in an error, value).
    """
    items = require_tree(f"{where}: upload", update.payload)
    if type(update.num_examples) is not int or update.num_examples < 1:
        raise unexpected_value(f"{where}: num_examples must be a positive int", update.num_examples)

    # the metrics, which become columns
    if not isinstance(update.metrics, dict) or "train_loss" not in update.metrics:
        raise unexpected_value(f"{where}: metrics must be a dict with 'train_loss'", update.metrics)
    _require_columns(f"{where}: metrics", update.metrics, CLIENT_COLUMNS, "clients.parquet")
    items += [(f"{where}: metrics '{name}'", value) for name, value in update.metrics.items()]
    return items


def check_logits(task: Task, clients: Cohort, labels: Tensor, logits: object) -> Tensor:
    """Check the logits that predict returns for a batch with labels [K, B], and return them."""
    shape = [*labels.shape, task.num_classes]
    device = labels.device
    if (
        not isinstance(logits, Tensor)
        or list(logits.shape) != shape
        or not logits.is_floating_point()
        or logits.device != device
    ):
        where = describe_hook_call(task, "predict", *clients.ids)
        raise unexpected_value(
            f"{where}: must return logits {shape} (clients, images, classes), "
            f"floating-point on {device}",
            logits,
        )
    return logits


def check_offsets(task: Task, hook: str, clients: Cohort, offsets: Tensor | None) -> None:
    """Check what a hook adds to the logits of clients: finite numbers [K, C], or None."""
    if offsets is None:
        return
    where = describe_hook_call(task, hook, *clients.ids)
    shape = [len(clients), task.num_classes]
    if not isinstance(offsets, Tensor) or list(offsets.shape) != shape:
        raise unexpected_value(f"{where}: must return offsets {shape} (clients, classes)", offsets)
    require_finite([(f"{where}: the offsets", offsets)])


def check_artefact(task: Task, hook: str, name: str, table: object) -> None:
    """Check the table that `hook` (artefact or audit_table) returns.

    It must be a dict of equally long lists.
    """
    where = describe_hook_call(task, hook)
    if table is None:
        raise FedLoomError(f"{where}: the method gives no '{name}' with these options")
    try:
        pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise unexpected_value(
            f"{where}: must return '{name}' as a dict of equally long lists ({in_words(error)})",
            table,
        ) from None
