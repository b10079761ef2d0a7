"""What hooks may return of clients: who takes part, for how long, with which personal state."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.common.tensors import Tree, leaves
from fedloom.federated.checks.trees import (
    call_of,
    kind_of,
    named,
    require_alike,
    require_finite,
    require_tree,
)
from fedloom.federated.task import Cohort, Task


def check_available(task: Task, ids: object) -> None:
    """Check the clients that available_clients returns.

    Raises:
        FedLoomError: they are not distinct ids, at least one, of participating clients.
    """
    allowed, words = task.data.participating, "participating clients (task.data.participating)"
    if ids is allowed:
        return
    _check_ids(call_of(task, "available_clients"), ids, allowed, words)


def check_selection(task: Task, available: Sequence[int], ids: object) -> None:
    """Check the clients that select_clients returns.

    Raises:
        FedLoomError: they are not distinct ids, at least one, of available clients.
    """
    where = call_of(task, "select_clients")
    _check_ids(where, ids, available, "available clients (its argument `available`)")


def check_work(task: Task, client: int, share: object) -> None:
    """Check what local_work returns for one client.

    Raises:
        FedLoomError: it is no number above 0 and at most 1.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise FedLoomError(
            f"{call_of(task, 'local_work', client)}: it must return a share of the local steps, "
            f"above 0 and at most 1, not {kind_of(share)}"
        )


def _check_ids(where: str, ids: object, allowed: Sequence[int], words: str) -> None:
    """Require a list of distinct client ids, not empty.

    Args:
        allowed: ids that it may hold, ascending, which `words` name.
    """
    if not isinstance(ids, list | tuple) or not all(type(k) is int for k in ids):
        raise FedLoomError(
            f"{where}: it must return a list of client ids (int), not {kind_of(ids)}"
        )
    if not ids:
        raise FedLoomError(f"{where}: it must return at least one client")
    if len(set(ids)) < len(ids):
        twice = next(k for k in ids if ids.count(k) > 1)
        raise FedLoomError(f"{where}: it must return different clients, but gave {twice} twice")
    strangers = [k for k in sorted(ids) if not _holds(allowed, k)]
    if strangers:
        raise FedLoomError(f"{where}: it must return {words}, but gave {strangers[0]}")


def _holds(ascending: Sequence[int], number: int) -> bool:
    """Return True if the number is one of those that ascend, without a look at most of them."""
    position = bisect_left(ascending, number)
    return position < len(ascending) and ascending[position] == number


def check_personal(task: Task, hook: str, client: int, state: Tree) -> None:
    """Check the personal state of one client that init_client or unseen_client_state returns.

    Raises:
        FedLoomError: names the hook, the client and the tensor.
    """
    where = call_of(task, hook, client)
    require_tree(where, "the client's state", state)
    require_finite(named(where, "the client's state", state))


def check_personalized(task: Task, clients: Cohort, states: Tree) -> None:
    """Check the personal states of a cohort that personalize returns.

    Raises:
        FedLoomError: names the tensor that is not finite, or lacks the client axis.
    """
    where = call_of(task, "personalize", *clients.ids)
    require_tree(where, "the clients' state", states)
    for path, value in leaves(states):
        if isinstance(value, Tensor) and value.shape[:1] != (len(clients),):
            raise FedLoomError(
                f"{where}: the clients' state '{path}' must lead with the {len(clients)} clients, "
                f"but is {kind_of(value)}"
            )
    require_finite(named(where, "the clients' state", states))


def check_stackable(
    task: Task, hook: str, states: Mapping[int, Tree], trained: Collection[int]
) -> None:
    """Check that the personal states of a cohort have the same keys, types, shapes and scalars.

    Args:
        hook: the one that made the states of clients that are not in `trained`.
        states: by client id.

    Raises:
        FedLoomError: names the client and the tensor.
    """
    first = next((client for client in states if client in trained), next(iter(states)))
    for client, state in states.items():
        where, other = call_of(task, hook, client), f"the state of client {first}"
        require_alike(f"{where}: the client's state", state, states[first], other, stacked=True)
