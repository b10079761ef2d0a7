"""Require that trees of tensors have the right form, and that their numbers are finite.

A tree is a nested dict of tensors and plain numbers. Errors name the tree and the leaf.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.common.schema import is_number
from fedloom.common.trees import Tree, leaves

# how an error calls a leaf of a tree, and the leaf
NamedLeaf = tuple[str, Tensor | float]
# what an error advises if numbers are not finite
CURE = "lower training.lr or set training.clip"


def unexpected_value(line: str, value: object) -> FedLoomError:
    """Return the error for a value that is not as it must be: "<line>, got <value>"."""
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


def require_tree(where: str, tree: object, path: str = "") -> list[NamedLeaf]:
    """Require a nested dict of dense tensors and plain numbers, whose keys are plain names.

    Return its leaves as (name, value). An error calls a leaf by this name, which is made of `where`
    and the leaf's path.
    """
    if not isinstance(tree, dict):
        raise unexpected_value(f"{where} must be a dict of tensors", tree)
    items: list[NamedLeaf] = []
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
    """Return True for a tensor that stores each of its numbers in memory."""
    if not isinstance(value, Tensor):
        return False
    is_odd = value.is_nested or value.is_quantized or value.is_meta
    return value.layout is torch.strided and not is_odd


def require_alike(
    where: str, tree: Tree, other: Tree, words: str, grows: bool = False, stacked: bool = False
) -> None:
    """Require that `tree` has the same paths, types and shapes as `other`.

    Args:
        where: how an error names `tree`.
        words: how an error names `other`.
        grows: True if the first axis of a tensor may have another length.
        stacked: True if plain numbers must be equal too. The clients of a cohort share one number.
    """
    if tree is other:
        return
    values = dict(leaves(tree))
    examples = dict(leaves(other))

    # the same paths
    for path in sorted(values.keys() ^ examples.keys()):
        fault = "is new" if path in values else "is missing"
        raise FedLoomError(f"{where} '{path}' {fault}, compared with {words}: keys must not differ")

    # at each path, tensors of the same type and shape, or two plain numbers
    first_axis = 0
    if grows:
        first_axis = 1
    for path, value in values.items():
        like = examples[path]
        if not _are_alike(value, like, first_axis, equal_numbers=stacked):
            found = describe_value(value)
            wanted = describe_value(like)
            raise FedLoomError(f"{where} '{path}' is {found}, but {words} has {wanted}")


def _are_alike(value: object, like: object, first_axis: int, equal_numbers: bool) -> bool:
    """Return True for two tensors of the same type and shape, and for two plain numbers.

    Shapes are compared from axis `first_axis` on. With `equal_numbers`, plain numbers must be
    equal.
    """
    if isinstance(value, Tensor) and isinstance(like, Tensor):
        if value.dtype != like.dtype or value.dim() != like.dim():
            return False
        return value.shape[first_axis:] == like.shape[first_axis:]
    if isinstance(value, Tensor) or isinstance(like, Tensor):
        return False
    return value == like or not equal_numbers


def require_finite(items: Iterable[NamedLeaf], cure: str = CURE) -> None:
    """Require that no tensor or number holds NaN or infinity; an error names the first that does.

    Each device is asked once about all of its tensors, because each answer means waiting for the
    device.
    """
    # let each device compute a flag for each of its tensors
    flags: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, value in items:
        if isinstance(value, Tensor):
            tensor = value
        else:
            tensor = torch.as_tensor(value, dtype=torch.float64)
        flags.setdefault(tensor.device, []).append((name, tensor.isfinite().all()))

    # fetch the flags, once per device
    for asked in flags.values():
        finite = torch.stack([flag for _, flag in asked]).tolist()
        for (name, _), fine in zip(asked, finite, strict=True):
            if not fine:
                raise NotFiniteError(f"{name} is not finite (NaN or infinity); {cure}")
