"""Map, stack over clients, and count nested dicts of tensors."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

# a mapping whose values are Trees, Tensors or plain numbers
Tree = dict[str, Any]
# torch places every new tensor at an address that is a multiple of so many bytes
ALIGNED = 64


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path 'a/b/c', in the order of the sorted keys."""
    for key in sorted(tree):
        value = tree[key]
        name = key
        if path:
            name = f"{path}/{key}"

        if isinstance(value, dict):
            yield from leaves(value, name)
        else:
            yield name, value


def build_tree(items: Iterable[tuple[str, object]]) -> Tree:
    """Build the tree whose leaves are given by path (the inverse of `leaves`)."""
    tree: Tree = {}
    for path, value in items:
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def aligned(tensor: Tensor) -> Tensor:
    """Return a detached tensor with the alignment and the strides that torch gives a new one.

    It is a copy only if the tensor is laid out in another way. The last bits of a kernel's result
    depend on a tensor's address and strides.
    """
    flat = tensor.detach().contiguous().view(-1)
    if flat.data_ptr() % ALIGNED:
        flat = flat.clone()

    # a detour over one axis is needed: contiguous() keeps any stride of an axis of length 1
    return flat.view(tensor.shape)


def tensor_map(function: Callable[..., object], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to the tensors at each path of all trees; keep the first tree's scalars."""
    result = {}
    for key, value in tree.items():
        rest = [other[key] for other in others]
        if isinstance(value, dict):
            result[key] = tensor_map(function, value, *rest)
        elif isinstance(value, Tensor):
            result[key] = function(value, *rest)
        else:
            result[key] = value
    return result


def on_device(tree: Tree, device: torch.device) -> Tree:
    """Return the tree with its tensors on the device; tensors that are already there stay."""
    # only a copy to a GPU may go on in the background: a copy to the host is read at once
    ahead = device.type == "cuda"
    return tensor_map(lambda value: value.to(device, non_blocking=ahead), tree)


def stack(trees: list[Tree]) -> Tree:
    """Stack K trees of the same shapes and scalars into one tree whose tensors are [K, ...].

    A tensor that is the same object in all trees is expanded, not copied.

    Raises:
        ValueError: a plain scalar differs between the trees.
    """
    # scalars have no axis of clients
    scalars = [_scalars(tree) for tree in trees]
    if any(other != scalars[0] for other in scalars):
        raise ValueError("a plain scalar differs between clients; keep it as a tensor")

    def join(*values: Tensor) -> Tensor:
        if all(value is values[0] for value in values):
            return values[0].expand(len(values), *values[0].shape)
        return torch.stack(values)

    return tensor_map(join, *trees)


def _scalars(tree: Tree) -> list[tuple[str, object]]:
    """Return the leaves that are not tensors, with their paths."""
    return [(path, value) for path, value in leaves(tree) if not isinstance(value, Tensor)]


def unstack(tree: Tree, k: int) -> Tree:
    """Return client k's part of a stacked tree, as a copy."""
    return tensor_map(lambda value: value[k].clone(), tree)


def count_floats(tree: Tree) -> dict[str, int]:
    """Count the numbers in the tree by the name of the leaf ('head', 'prototypes', ...).

    A backbone's own weights, whose names have dots, are counted together, by the name of the dict
    that holds them.
    """
    counts = Counter[str]()
    for path, value in leaves(tree):
        *parents, name = path.split("/")
        if "." in name:
            name = parents[-1]

        if isinstance(value, Tensor):
            counts[name] += value.numel()
        else:
            counts[name] += 1
    return counts


def count_bytes(tree: Tree) -> int:
    """Count the bytes of a tree when it is sent: all bytes of tensors, and 8 per plain scalar."""
    count = 0
    for _, value in leaves(tree):
        if isinstance(value, Tensor):
            count += value.nbytes
        else:
            count += 8
    return count
