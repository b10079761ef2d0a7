"""What training changed of parameters, for wrappers that compress, clip or combine uploads."""

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.common.tensors import Tree, build, leaves
from fedloom.federated.task import Task, Update


def split_known(params: Tree, received: Tree) -> tuple[Tree, Tree, Tree]:
    """Divide an upload's parameters by whether their client had received them.

    Returns:
        The tensors of `params` whose path, shape and floating-point type are among `received`;
        the same tensors as received; and the rest of `params`.
    """
    sent = dict(leaves(received))
    returned, start, rest = {}, {}, {}
    for path, value in leaves(params):
        before = sent.get(path)
        if (
            isinstance(value, Tensor)
            and isinstance(before, Tensor)
            and value.shape == before.shape
            and value.dtype == before.dtype
            and value.is_floating_point()
        ):
            returned[path], start[path] = value, before
        else:
            rest[path] = value
    return build(returned.items()), build(start.items()), build(rest.items())


def merge(tree: Tree, other: Tree) -> Tree:
    """Return one tree with the leaves of both."""
    return build([*leaves(tree), *leaves(other)])


def flatten(tree: Tree) -> Tensor:
    """Return all floating-point numbers of a tree as one vector [D], by path."""
    values = [value for _, value in leaves(tree) if isinstance(value, Tensor)]
    floats = [value.flatten() for value in values if value.is_floating_point()]
    return torch.cat(floats) if floats else torch.zeros(0)


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """Return the tree `like`, its floating-point numbers replaced by those of a vector [D]."""
    items, start = [], 0
    for path, value in leaves(like):
        if isinstance(value, Tensor) and value.is_floating_point():
            part = vector[start : start + value.numel()]
            items.append((path, part.view(value.shape).to(value.dtype)))
            start += value.numel()
        else:
            items.append((path, value))
    return build(items)


def require_params_alone(task: Task, wrapper: str, update: Update) -> Tree:
    """Return an upload's parameters, if the server takes their mean and they are all there is."""
    if task.aggregation is None:
        raise FedLoomError(
            f"{wrapper}: method {task.method} declares no aggregation with these options: its "
            "server may use each update by itself, not their mean; remove the wrapper"
        )
    sent = [*leaves(update.payload)]
    for path, value in sent:
        floats = isinstance(value, Tensor) and value.is_floating_point()
        if not path.startswith("params/") or not floats:
            raise FedLoomError(
                f"{wrapper}: method {task.method} uploads '{path}', which must not be averaged; "
                "remove the wrapper"
            )
    if not sent:
        line = f"method {task.method} uploads no parameters; remove the wrapper"
        raise FedLoomError(f"{wrapper}: {line}")
    return update.payload["params"]
