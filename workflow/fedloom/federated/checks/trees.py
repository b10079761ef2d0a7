"""What every hook's result is held to: plain names, dense tensors, equal shapes, finite numbers."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError, NotFiniteError
from fedloom.common.tensors import Tree, leaves
from fedloom.federated.task import Task
from fedloom.hooks.hook_caller import describe

COLUMNS = (  # of clients.parquet
    *("dataset", "partition", "backbone", "method", "seed", "round", "client_id"),
    *("num_examples", "work", "received", "bytes_up", "bytes_down"),
)
DEEPEST = 10  # dicts in each other
CURE = "lower training.lr or set training.clip"


def not_finite(items: Iterable[tuple[str, Any]]) -> str | None:
    """Return the name of the first tensor or number that holds NaN or infinity, if there is one.

    Every device is asked once for all of its tensors, since each answer is a wait for it.
    """
    flags: list[tuple[str, Tensor]] = []
    for name, value in items:
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            flags.append((name, torch.isfinite(value).all()))
        elif isinstance(value, float):
            flags.append((name, torch.tensor(math.isfinite(value))))
    bad: list[int] = []
    for device in {flag.device for _, flag in flags}:
        positions = [n for n, (_, flag) in enumerate(flags) if flag.device == device]
        finite = torch.stack([flags[n][1] for n in positions]).tolist()
        bad += [n for n, fine in zip(positions, finite, strict=True) if not fine]
    return flags[min(bad)][0] if bad else None


def call_of(task: Task, hook: str, *ids: int) -> str:
    """Return how an error names a call of a hook in this round."""
    return describe([task.method, *task.wrappers], hook, task.round, ids)


def kind_of(value: object) -> str:
    """Return what an error calls a value that was not expected."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    if isinstance(value, int | float | bool | str):
        return repr(value)[:80]
    return "None" if value is None else type(value).__name__


def require_tree(where: str, what: str, tree: object, levels: int = DEEPEST) -> None:
    """Require a nested dict with plain names, of dense tensors and plain numbers.

    Args:
        levels: of dicts that it may have.
    """
    if not levels:
        line = f"more than {DEEPEST} dicts in each other, or one that holds itself"
        raise FedLoomError(f"{where}: {what}: {line}")
    if not isinstance(tree, dict):
        raise FedLoomError(f"{where}: {what} must be a dict of tensors, not {kind_of(tree)}")
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise FedLoomError(f"{where}: {what} has the key {key!r}; use names without '/'")
        if isinstance(value, dict):
            require_tree(where, f"{what} '{key}'", value, levels - 1)
        elif isinstance(value, Tensor):
            for fault, cure in _faults(value):
                raise FedLoomError(f"{where}: {what} '{key}' is {fault}; {cure}")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise FedLoomError(
                f"{where}: {what} '{key}' must be a tensor or a plain number, not {kind_of(value)}"
            )


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

    Args:
        grows: the first axis of a tensor may be longer or shorter.
        stacked: plain numbers must be equal too, since a cohort has only one.
    """
    if tree is other:
        return
    mine, theirs = dict(leaves(tree)), dict(leaves(other))
    for path in sorted(mine.keys() ^ theirs.keys()):
        fault = "is new" if path in mine else "is missing"
        raise FedLoomError(f"{where} '{path}' {fault}, compared with {words}: keys must not differ")
    for path, value in mine.items():
        like = theirs[path]
        if not isinstance(value, Tensor) or not isinstance(like, Tensor):
            both_plain = not isinstance(value, Tensor) and not isinstance(like, Tensor)
            if not both_plain or (stacked and value != like):
                raise FedLoomError(
                    f"{where} '{path}' is {kind_of(value)}, but {words} has {kind_of(like)}"
                )
            continue
        from_axis = 1 if grows else 0
        same = value.dim() == like.dim() and value.shape[from_axis:] == like.shape[from_axis:]
        if value.dtype != like.dtype or not same:
            raise FedLoomError(
                f"{where} '{path}' is {value.dtype} {list(value.shape)}, but {words} has "
                f"{like.dtype} {list(like.shape)}"
            )


def named(where: str, what: str, tree: Tree) -> list[tuple[str, Any]]:
    """Return the leaves of a tree, each with the name that an error calls it by."""
    return [(f"{where}: {what} '{path}'", value) for path, value in leaves(tree)]


def require_finite(items: Iterable[tuple[str, Any]]) -> None:
    """Require finite numbers."""
    name = not_finite(items)
    if name is not None:
        raise NotFiniteError(f"{name} is not finite (NaN or infinity); {CURE}")
