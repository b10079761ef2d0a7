"""Count the work of a device: operators, bytes read and written, and copies, on any device.

A GPU spends the time of a step on products, on memory traffic, and on starting operators. Products
are counted by torch's FlopCounterMode; this module counts the other two. It counts on a CPU what
the same operators would do on a GPU, where they are the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# operators that only move numbers, or change their type
COPIES = {"copy_", "_to_copy", "clone", "cat", "stack", "constant_pad_nd", "index", "index_select"}


@dataclass
class Work:
    """The work of operators: what they compute and move.

    Attributes:
        operators: number of operators that compute or move something; views are not counted.
        bytes: bytes of their inputs and outputs.
        copies: number of operators that only move numbers or change their type.
        copied_bytes: bytes that these copies read and write.
    """

    operators: int = 0
    bytes: int = 0
    copies: int = 0
    copied_bytes: int = 0


class WorkCounter(TorchDispatchMode):
    """A context that adds up the work of all operators, also of their backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and add its work unless it returns a view."""
        result = func(*args, **(kwargs or {}))
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        made = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        if _is_view(func, given, made):
            return result

        size = sum(map(_bytes, given)) + sum(map(_bytes, made))
        self.work.operators += 1
        self.work.bytes += size
        if func.overloadpacket.__name__ in COPIES:
            self.work.copies += 1
            self.work.copied_bytes += size
        return result


def _is_view(func: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    """Return True if an operator computes nothing: it returns a view of an input, or no numbers."""
    name = func.overloadpacket.__name__
    if func.is_view or name in {"_unsafe_view", "detach", "lift_fresh", "empty", "empty_strided"}:
        return True
    if not made:
        return False
    # an in-place operator also returns the storage of its input, but it writes there
    if name.endswith("_"):
        return False
    storages = {value.untyped_storage().data_ptr() for value in given}
    return all(value.untyped_storage().data_ptr() in storages for value in made)


def _bytes(value: Tensor) -> int:
    """Return the bytes that reading a tensor touches; numbers that repeat count once."""
    pairs = zip(value.shape, value.stride(), strict=True)
    distinct = prod(size for size, stride in pairs if stride != 0)
    return distinct * value.element_size()


def count_work(function: Callable[[], object]) -> Work:
    """Return the work of a call of a function without arguments."""
    with WorkCounter() as counter:
        function()
    return counter.work
