"""What training changed in the parameters: for wrappers that compress, clip or combine uploads."""

import logging
import math

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.common.trees import Tree, build_tree, leaves
from fedloom.federated.task import Task, Update

log = logging.getLogger(__name__)


def split_by_received(params: Tree, received: Tree) -> tuple[Tree, Tree, Tree]:
    """Split an upload's parameters into those that the client had received, and the others.

    Returns:
        1. The tensors of `params` for which `received` has a tensor of the same path, shape and
           floating-point type.
        2. These tensors as they were received.
        3. The rest of `params`.
    """
    sent = dict(leaves(received))
    returned = {}
    start = {}
    rest = {}
    for path, value in leaves(params):
        known = _is_float(value) and _is_float(sent.get(path))
        # an upload may hold a different kind of tensor under a path that was received
        if known and value.shape == sent[path].shape and value.dtype == sent[path].dtype:
            returned[path] = value
            start[path] = sent[path]
        else:
            rest[path] = value
    return build_tree(returned.items()), build_tree(start.items()), build_tree(rest.items())


def merge(tree: Tree, other: Tree) -> Tree:
    """Return one tree with the leaves of two trees."""
    return build_tree([*leaves(tree), *leaves(other)])


def flatten(tree: Tree) -> Tensor:
    """Return all floating-point numbers of a tree as one vector [D], in the order of paths."""
    floats = [value.flatten() for _, value in leaves(tree) if _is_float(value)]
    if not floats:
        return torch.zeros(0)
    return torch.cat(floats)


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """Return the tree `like` with its floating-point numbers replaced by those of a vector [D]."""
    items = []
    start = 0
    for path, value in leaves(like):
        if _is_float(value):
            part = vector[start : start + value.numel()]
            items.append((path, part.view(value.shape).to(value.dtype)))
            start += value.numel()
        else:
            items.append((path, value))
    return build_tree(items)


def finite_updates(task: Task, wrapper: str, updates: list[Update]) -> list[Update]:
    """Return the updates that are finite, for a wrapper that rejects the others.

    An update is finite if neither its upload nor its metrics hold NaN or infinity.

    Raises:
        NotFiniteError: no update is finite.
    """
    # split the updates into finite and other ones
    kept = []
    rejected = []
    for update in updates:
        numbers = [torch.as_tensor(value) for _, value in leaves(update.payload)]
        is_finite = all(bool(value.isfinite().all()) for value in numbers)

        # a metric that is not finite would end the run, too
        if is_finite and all(math.isfinite(value) for value in update.metrics.values()):
            kept.append(update)
        else:
            rejected.append(update)

    if not kept:
        raise NotFiniteError(
            f"{wrapper}: round {task.round} must have an update that is finite, got {len(updates)} "
            "with NaN or infinity; lower training.lr, or the share of attackers"
        )

    for update in rejected:
        log.info(
            "%s: round %d: left out the update of client %d, which is not finite",
            wrapper,
            task.round,
            update.client,
        )
    return kept


def require_params_alone(task: Task, wrapper: str, update: Update) -> Tree:
    """Return the parameters of an upload, if the server averages them and the upload holds no more.

    Raises:
        FedLoomError: the server may use each update by itself, or the upload holds something else
            than floating-point parameters.
    """
    if task.aggregation is None:
        raise FedLoomError(
            f"{wrapper}: method {task.method} declares no aggregation with these options: its "
            "server may use each update by itself, not their mean; remove the wrapper"
        )

    # there must be at least one parameter, and nothing else
    for path, value in leaves(update.payload):
        if not path.startswith("params/") or not _is_float(value):
            raise FedLoomError(
                f"{wrapper}: method {task.method} uploads '{path}', which must not be averaged; "
                "remove the wrapper"
            )
    if not update.payload.get("params"):
        raise FedLoomError(f"{wrapper}: method {task.method} uploads no parameters; remove it")
    return update.payload["params"]


def _is_float(value: object) -> bool:
    """Return True for a tensor of floating-point numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()
