"""Requirements on any hook's result: plain names, dense tensors, equal shapes, finite numbers."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.common.numbers import is_number
from fedloom.common.tensors import Tree, leaves
from fedloom.federated.task import Task
from fedloom.hooks.hook_caller import describe

DEEPEST = 10  # levels of dicts
CURE = "lower training.lr or set training.clip"


def call_of(task: Task, hook: str, *ids: int) -> str:
    """Return how an error names a call of a hook in this round."""
    return describe([task.method, *task.wrappers], hook, task.round, ids)


def wrong(where: str, expected: str, value: object) -> FedLoomError:
    """Return the error of a value that is not as expected: "<where>: <expected>, got <value>"."""
    return FedLoomError(f"{where}: {expected}, got {kind_of(value)}")


def kind_of(value: object) -> str:
    """Return how an error names a value that was not expected."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    if isinstance(value, int | float | bool | str):
        return repr(value)[:80]
    return "None" if value is None else type(value).__name__


def require_tree(where: str, what: str, tree: object) -> list[tuple[str, Any]]:
    """Require a nested dict with plain names, of dense tensors and plain numbers.

    Return its leaves, each with the name that an error calls it by.
    """
    _require_tree(where, what, tree, DEEPEST)
    return [(f"{where}: {what} '{path}'", value) for path, value in leaves(cast(Tree, tree))]


def _require_tree(where: str, what: str, tree: object, levels: int) -> None:
    """Require the same of a dict of at most `levels` levels."""
    if not levels:
        line = f"must have at most {DEEPEST} levels of dicts, and no dict that holds itself"
        raise FedLoomError(f"{where}: {what} {line}")
    if not isinstance(tree, dict):
        raise wrong(where, f"{what} must be a dict of tensors", tree)
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise FedLoomError(f"{where}: {what} has the key {key!r}; use names without '/'")
        if isinstance(value, dict):
            _require_tree(where, f"{what} '{key}'", value, levels - 1)
        elif isinstance(value, Tensor):
            for fault, cure in _faults(value):
                raise FedLoomError(f"{where}: {what} '{key}' is {fault}; {cure}")
        elif not is_number(value):
            raise wrong(where, f"{what} '{key}' must be a tensor or a plain number", value)


def _faults(tensor: Tensor) -> Iterator[tuple[str, str]]:
    """Yield what keeps a tensor from being sent, and what to do."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        yield "sparse or nested", "make it dense"
    if tensor.is_meta:
        yield "on the device meta, without numbers", "give it some"
    if tensor.is_quantized:
        yield f"of {tensor.dtype}", "send its int_repr(), with scale and zero point as tensors"


def require_alike(
    where: str, tree: Tree, other: Tree, words: str, grows: bool = False, stacked: bool = False
) -> None:
    """Require the leaves of `other`, which `words` name: their paths, types and shapes.

    If it `grows`, the first axis of a tensor may differ; if it is `stacked`, plain numbers must be
    equal too, since a cohort has only one.
    """
    if tree is other:
        return
    values, examples = dict(leaves(tree)), dict(leaves(other))
    for path in sorted(values.keys() ^ examples.keys()):
        fault = "is new" if path in values else "is missing"
        raise FedLoomError(f"{where} '{path}' {fault}, compared with {words}: keys must not differ")
    first_axis = 1 if grows else 0
    for path, value in values.items():
        like = examples[path]
        if isinstance(value, Tensor) and isinstance(like, Tensor):
            same = value.dtype == like.dtype and value.dim() == like.dim()
            same = same and value.shape[first_axis:] == like.shape[first_axis:]
        else:
            same = not isinstance(value, Tensor) and not isinstance(like, Tensor)
            same = same and (value == like or not stacked)
        if not same:
            line = f"is {kind_of(value)}, but {words} has {kind_of(like)}"
            raise FedLoomError(f"{where} '{path}' {line}")


def require_finite(items: Iterable[tuple[str, Any]]) -> None:
    """Require that no tensor or number holds NaN or infinity; the first one that does is named.

    Every device is asked once for all of its tensors, since each answer is a wait for it.
    """
    bad: list[tuple[int, str]] = []
    flags: dict[torch.device, list[tuple[int, str, Tensor]]] = {}
    for number, (name, value) in enumerate(items):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            flags.setdefault(value.device, []).append((number, name, value.isfinite().all()))
        elif isinstance(value, float) and not math.isfinite(value):
            bad.append((number, name))
    for asked in flags.values():
        finite = torch.stack([flag for _, _, flag in asked]).tolist()
        bad += [(n, name) for (n, name, _), fine in zip(asked, finite, strict=True) if not fine]
    if bad:
        raise NotFiniteError(f"{min(bad)[1]} is not finite (NaN or infinity); {CURE}")
