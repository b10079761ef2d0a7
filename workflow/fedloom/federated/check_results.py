"""Check the results of hooks: nothing malformed, and nothing that is not finite, enters a run.

A check raises a FedLoomError that names the hook, the round, the client and the tensor or field.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError, in_words
from fedloom.common.run_tables import CLIENTS_SCHEMA, ROUNDS_SCHEMA
from fedloom.common.schema import is_number
from fedloom.common.trees import Tree, leaves
from fedloom.data.federation import Federation
from fedloom.federated.task import Cohort, Task, Update
from fedloom.hooks.plugin_code import describe_call

# columns that the stage `evaluate` adds
RUN_LABEL_NAMES = ("dataset", "partition", "backbone", "method", "seed")
CLIENT_COLUMNS = (*RUN_LABEL_NAMES, *CLIENTS_SCHEMA.names)
ROUND_COLUMNS = (*RUN_LABEL_NAMES, *ROUNDS_SCHEMA.names, "updates")


def describe_hook_call(task: Task, hook: str, *ids: int) -> str:
    """Return how an error names a call of a hook in this round."""
    return describe_call([task.method, *task.wrappers], hook, task.round, ids)


def unexpected_value(line: str, value: object) -> FedLoomError:
    """Return the error for a value that is not as expected: "<line>, got <value>"."""
    return FedLoomError(f"{line}, got {describe_value(value)}")


def describe_value(value: object) -> str:
    """Describe a value for an error message."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype} on {value.device}"
    if isinstance(value, int | float | bool | str):
        return repr(value)[:80]
    if value is None:
        return "None"
    return type(value).__name__


def require_tree(where: str, tree: object, path: str = "") -> list[tuple[str, Any]]:
    """Require a nested dict with plain names, of dense tensors and plain numbers.

    Return its leaves, each with the name that an error calls it by: `where` and its path.
    """
    if not isinstance(tree, dict):
        raise unexpected_value(f"{where} must be a dict of tensors", tree)
    items: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise FedLoomError(f"{where} has the key {key!r}; use names without '/'")
        inner = key
        if path:
            inner = f"{path}/{key}"

        # a branch
        if isinstance(value, dict):
            items += require_tree(where, value, inner)
            continue

        # a leaf
        name = f"{where} '{inner}'"
        if not (_is_dense(value) or is_number(value)):
            raise unexpected_value(f"{name} must be a dense tensor or a plain number", value)
        items.append((name, value))
    return items


def _is_dense(value: object) -> bool:
    """Return True for a tensor whose numbers lie in memory one by one."""
    if not isinstance(value, Tensor):
        return False
    is_odd = value.is_nested or value.is_quantized or value.is_meta
    return value.layout is torch.strided and not is_odd


def require_alike(
    where: str, tree: Tree, other: Tree, words: str, grows: bool = False, stacked: bool = False
) -> None:
    """Require the leaves of `other`, which `words` name: their paths, types and shapes.

    If it `grows`, the first axis of a tensor may differ; if it is `stacked`, plain numbers must be
    equal too, since a cohort has only one.
    """
    if tree is other:
        return
    values = dict(leaves(tree))
    examples = dict(leaves(other))

    # the same paths
    for path in sorted(values.keys() ^ examples.keys()):
        fault = "is new" if path in values else "is missing"
        raise FedLoomError(f"{where} '{path}' {fault}, compared with {words}: keys must not differ")

    # tensors of the same type and shape, and numbers where there were numbers
    first_axis = 0
    if grows:
        first_axis = 1
    for path, value in values.items():
        like = examples[path]
        if not _are_alike(value, like, first_axis, equal_numbers=stacked):
            found = describe_value(value)
            wanted = describe_value(like)
            raise FedLoomError(f"{where} '{path}' is {found}, but {words} has {wanted}")


def _are_alike(value: Any, like: Any, first_axis: int, equal_numbers: bool) -> bool:
    """Return True for tensors of one type and shape, from an axis on, and for two plain numbers.

    If they must be `equal_numbers`, plain numbers must be equal too.
    """
    if isinstance(value, Tensor) and isinstance(like, Tensor):
        if value.dtype != like.dtype or value.dim() != like.dim():
            return False
        return value.shape[first_axis:] == like.shape[first_axis:]
    if isinstance(value, Tensor) or isinstance(like, Tensor):
        return False
    return value == like or not equal_numbers


CURE = "lower training.lr or set training.clip"
LEAVE_OUT = "its wrapper declares rejects_non_finite; leave such an update out in receive"


def require_finite(items: Iterable[tuple[str, Any]], cure: str = CURE) -> None:
    """Require that no tensor or number holds NaN or infinity; the first one that does is named.

    Every device is asked once for all of its tensors, since each answer is a wait for it.
    """
    # let every device compute its answers, a flag per tensor
    flags: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in items:
        tensor = value
        if not isinstance(value, Tensor):
            tensor = torch.as_tensor(value, dtype=torch.float64)
        flags.setdefault(tensor.device, []).append((name, tensor.isfinite().all()))

    # fetch the answers
    for asked in flags.values():
        finite = torch.stack([flag for _, flag in asked]).tolist()
        for (name, _), fine in zip(asked, finite, strict=True):
            if not fine:
                raise NotFiniteError(f"{name} is not finite (NaN or infinity); {cure}")


def check_ids(task: Task, hook: str, ids: object, allowed: Sequence[int], kind: str) -> None:
    """Check that a hook returns different ids among the `allowed` ones, clients of a `kind`."""
    where = describe_hook_call(task, hook)
    if not isinstance(ids, list | tuple) or not all(type(k) is int for k in ids):
        raise unexpected_value(f"{where}: must return a list of client ids (int)", ids)
    if not ids or len(set(ids)) < len(ids):
        raise FedLoomError(
            f"{where}: must return at least one client, and none twice, got {str(ids)[:80]}"
        )
    for client in sorted(set(ids).difference(allowed)):
        raise FedLoomError(f"{where}: must return {kind} clients, got {client}")


def check_work(task: Task, client: int, share: object) -> None:
    """Check what local_work returns for one client."""
    if not is_number(share) or not 0 < share <= 1:  # type: ignore[operator]
        where = describe_hook_call(task, "local_work", client)
        raise unexpected_value(
            f"{where}: must return a share of the local steps, above 0 and at most 1", share
        )


def check_federation(task: Task, hook: str, data: Any) -> Federation:
    """Check and return what training_data or triggered returns."""
    if not isinstance(data, Federation):
        raise unexpected_value(
            f"{describe_hook_call(task, hook)}: must return a Federation, as task.data is", data
        )
    return data


def check_states(
    task: Task, hook: str, states: Mapping[int, Tree], trained: Collection[int]
) -> None:
    """Check that clients' personal states, by client, have the same keys, types and scalars.

    The hook made the states of clients that are not in `trained`.
    """
    # the state that all others are compared with: one that training has made, if there is one
    first = next((client for client in states if client in trained), next(iter(states)))

    # what training has made was checked when it was made
    items: list[tuple[str, Any]] = []
    for client, state in states.items():
        where = f"{describe_hook_call(task, hook, client)}: the client's state"
        if client not in trained:
            items += require_tree(where, state)
        require_alike(where, state, states[first], f"the state of client {first}", stacked=True)
    require_finite(items)


def check_personalized(task: Task, clients: Cohort, states: Tree) -> None:
    """Check the personal states of a cohort that personalize returns."""
    where = f"{describe_hook_call(task, 'personalize', *clients.ids)}: the clients' state"
    items = require_tree(where, states)
    for name, value in items:
        if isinstance(value, Tensor) and value.shape[:1] != (len(clients),):
            raise unexpected_value(f"{name} must lead with the {len(clients)} clients", value)
    require_finite(items)


def check_server(task: Task, server: Tree, before: Tree | None = None) -> None:
    """Check the server's state that init_server, or aggregate after `before`, returns.

    From round to round keys and types stay, and all axes but the first: a pool may grow.
    """
    hook = "init_server" if before is None else "aggregate"
    where = f"{describe_hook_call(task, hook)}: the server's state"
    items = require_tree(where, server)

    # its metrics, which become columns
    metrics = server.get("metrics", {})
    if not isinstance(metrics, dict):
        raise unexpected_value(f"{where} 'metrics' must be a dict of plain numbers", metrics)
    _require_columns(f"{where} metrics", metrics, ROUND_COLUMNS, "rounds.parquet")

    # the same keys and types as the round before
    if before is not None:
        require_alike(where, server, before, "the state that it was given", grows=True)
    require_finite(items)


def _require_columns(where: str, metrics: dict, taken: Sequence[str], table: str) -> None:
    """Require plain numbers whose names can be further columns of a table."""
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or name in taken or not is_number(value):
            raise unexpected_value(
                f"{where}[{name!r}] must be a plain number whose name is not a column of {table}",
                value,
            )


def check_downloads(
    task: Task, server: Tree, ids: Sequence[int], sent: Sequence[Tree], delivered: Sequence[Tree]
) -> None:
    """Check what download and deliver return for every client; all must receive the same keys."""
    items: list[tuple[str, Any]] = []
    for client, packed, tree in zip(ids, sent, delivered, strict=True):
        # as the server sends it, and as wrappers unpack it, if they do
        where = f"{describe_hook_call(task, 'download', client)}: the download"
        items += require_tree(where, packed)
        if tree is not packed:
            where = f"{describe_hook_call(task, 'deliver', client)}: the delivery"
            items += require_tree(where, tree)

        first = f"the download of client {ids[0]}"
        require_alike(where, tree, delivered[0], first, stacked=True)

    # tensors of the server's state were checked when init_server or aggregate returned them
    checked = {id(value) for _, value in leaves(server)}
    require_finite(item for item in items if id(item[1]) not in checked)


def check_loss(
    task: Task, clients: Sequence[int], mask: Tensor, result: Any, counters: Collection[str]
) -> tuple[Tensor, Tree]:
    """Check and return a loss [K, B] of the clients still training, and its extras [K, B, ...].

    The batch's `mask` is [K, B]; the extras may add to `counters`.
    """
    where = f"{describe_hook_call(task, 'train_locally', *clients)}: its loss"
    shape = list(mask.shape)

    # a loss may come alone, or with extras behind it
    values = result
    extras: Any = {}
    if isinstance(result, tuple) and len(result) == 2:
        values, extras = result

    # the loss, by which all parameters are differentiated
    if not isinstance(values, Tensor) or values.shape != mask.shape:
        raise unexpected_value(
            f"{where} must be one number per client and image, a tensor {shape}", values
        )
    if not values.requires_grad:
        raise FedLoomError(f"{where} must depend on the parameters that are trained")

    # what it adds to counters
    if not isinstance(extras, dict):
        raise unexpected_value(
            f"{where} may return a dict of counters as the second of two", extras
        )

    for name, value in extras.items():
        if not isinstance(value, Tensor) or value.shape[:2] != mask.shape:
            raise unexpected_value(
                f"{where} must give '{name}' per client and image, {shape} or more", value
            )
        if name not in ("reported_loss", *counters):
            raise FedLoomError(
                f"{where} adds to '{name}', which train_locally was not given among its counters"
            )
    return values, dict(extras)


def _require_updates(where: str, updates: Any) -> None:
    """Require a list of Updates."""
    if not isinstance(updates, list | tuple):
        raise unexpected_value(f"{where}: must return a list of Updates", updates)
    for update in updates:
        if not isinstance(update, Update):
            raise unexpected_value(f"{where}: must return a list of Updates alone", update)


def check_updates(
    task: Task,
    clients: Cohort,
    updates: Sequence[Update],
    states: Sequence[Tree],
    attacking: Collection[int] = (),
) -> None:
    """Check what client_update returns for a cohort whose personal states were `states`.

    An upload that is not finite passes if a wrapper leaves it out (`rejects_non_finite`), and so do
    the client's metrics. Otherwise the error names the client, and whether it attacks.
    """
    where = describe_hook_call(task, "client_update", *clients.ids)
    _require_updates(where, updates)
    if len(updates) != len(clients):
        raise FedLoomError(
            f"{where}: must return one Update per client, "
            f"got {len(updates)} for {len(clients)} clients"
        )

    # collect what must be finite, of attackers apart
    items: list[tuple[str, Any]] = []
    of_attackers: list[tuple[str, Any]] = []
    for client, update, before in zip(clients.ids, updates, states, strict=True):
        where = describe_hook_call(task, "client_update", client)

        # what the client sends
        sent = _sent(where, update)
        if client in attacking:
            must_be_finite = of_attackers
        else:
            must_be_finite = items
        if not task.plugin.rejects_non_finite:
            must_be_finite += sent

        # what it keeps, and what only wrappers read
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
    """Check what receive makes of the updates of one round, and that they fit to each other."""
    where = describe_hook_call(task, "receive")
    _require_updates(where, accepted)

    # at most one of each client, and none of clients that did not train
    clients = [update.client for update in accepted]
    strangers = set(clients) - {update.client for update in updates}
    if not clients or len(set(clients)) < len(clients) or strangers:
        raise FedLoomError(
            f"{where}: must return at least one Update, and at most one of each client of the "
            f"round, got those of clients {clients}; "
            "make new ones with dataclasses.replace(update, ...)"
        )

    # uploads that are alike, and finite
    sent = {id(update) for update in updates}
    items: list[tuple[str, Any]] = []
    for update in accepted:
        # an error names the hook that made the update
        is_new = id(update) not in sent
        hook = "receive" if is_new else "client_update"
        where = describe_hook_call(task, hook, update.client)

        # one that client_update returned was checked there, unless it may hold NaN
        if is_new or task.plugin.rejects_non_finite:
            items += _sent(where, update)

        other = f"the upload of client {clients[0]}"
        require_alike(f"{where}: upload", update.payload, accepted[0].payload, other)

    if task.plugin.rejects_non_finite:
        require_finite(items, LEAVE_OUT)
    else:
        require_finite(items)


def _sent(where: str, update: Update) -> list[tuple[str, Any]]:
    """Check an Update's upload and plain numbers; return all that must be finite, by name."""
    items = require_tree(f"{where}: upload", update.payload)
    if type(update.num_examples) is not int or update.num_examples < 1:
        raise unexpected_value(f"{where}: num_examples must be a positive int", update.num_examples)

    # metrics, which become columns
    if not isinstance(update.metrics, dict) or "train_loss" not in update.metrics:
        raise unexpected_value(f"{where}: metrics must be a dict with 'train_loss'", update.metrics)
    _require_columns(f"{where}: metrics", update.metrics, CLIENT_COLUMNS, "clients.parquet")
    items += [(f"{where}: metrics '{name}'", value) for name, value in update.metrics.items()]
    return items


def check_logits(task: Task, clients: Cohort, labels: Tensor, logits: object) -> Tensor:
    """Check and return what predict returns for a batch with these labels [K, B]."""
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


def check_artefact(task: Task, hook: str, name: str, table: Any) -> None:
    """Check the table of `hook`, artefact or audit_table: a dict of equally long lists."""
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
