"""Tensors that say that they are on cuda:0, with numbers on the CPU, where there is no GPU.

They refuse what a GPU refuses: tensors of two devices in an operation, a CPU generator, numpy().
To torch's C++ they are on the CPU, so that autograd needs no driver; only Python sees the other
device. So kernels, autocast and the choice of attention are the CPU's.
"""

# it overrides what torch declares otherwise
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
COPIES = {"copy_", "_to_copy"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
RANDOM = ("rand", "normal", "bernoulli", "uniform", "multinomial", "exponential", "native_dropout")
WAITING = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "equal"}


class OnGPU(torch.Tensor):
    """A tensor that says that it is on cuda:0; `inside` has its numbers."""

    inside: torch.Tensor
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> "OnGPU":
        layout = inside.shape, inside.stride(), inside.storage_offset()
        made = cls._make_wrapper_subclass(cls, *layout, dtype=inside.dtype)
        made.inside = inside
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented  # outside of the GPU's context

    def cpu(self) -> torch.Tensor:
        return self.to(CPU)

    def new_tensor(self, data: Any) -> torch.Tensor:
        return torch.tensor(data, dtype=self.dtype, device=CUDA)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.inside.data_ptr()


class GPU(TorchDispatchMode):
    """The GPU; counts how often the host waits for it, and bytes of tensors copied there."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.uploads = 0, list[int]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        there = [x for x in tensors if isinstance(x, OnGPU)]
        device = torch.device(kwargs.get("device") or (CUDA if there else CPU))
        if name == "copy_":
            device = args[0].device
        elif (there or not tensors) and torch._C._current_graph_task_id() != -1:
            device = CUDA  # autograd asks for the device on which C++ has its tensors
        if there and name not in COPIES:
            _refuse_mixed(func, name, args, [x for x in tensors if not isinstance(x, OnGPU)])
        drawn = device == CUDA and name.startswith(RANDOM)
        if drawn and any(isinstance(x, torch.Generator) and x.device == CPU for x in given):
            raise RuntimeError(f"{name}: expected a 'cuda' device type for generator, got 'cpu'")
        masks = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        down = name == "_to_copy" and device == CPU
        self.waits += bool(there and (name in WAITING or masks or down))
        if device == CUDA and name in COPIES:
            self.uploads += [x.nbytes for x in tensors if not isinstance(x, OnGPU)]
        named = _map(_inside, kwargs) | ({"device": CPU} if kwargs.get("device") else {})
        out = func(*_map(_inside, args), **named)
        known = {id(x.inside): x for x in there}  # a written tensor stays the same
        if device != CUDA:
            return out
        if torch.Tag.inplace_view in func.tags:  # like squeeze_, it changes the outer shape, too
            with no_dispatch():
                func(*args, **kwargs)
        return _map(lambda x: known[id(x)] if id(x) in known else OnGPU(x), out)


def _refuse_mixed(func: Any, name: str, args: tuple, here: list[torch.Tensor]) -> None:
    """Refuse tensors of two devices, but for single numbers and indices into a GPU's tensor."""
    written = func._schema.is_mutable and any(x is args[0] for x in here)
    indices = args[1] if name in INDEXED and isinstance(args[0], OnGPU) else ()
    shapes = [tuple(x.shape) for x in here if x.dim() and not any(x is i for i in indices)]
    if shapes or written:
        raise RuntimeError(f"{name}: expected all tensors on one device, got {shapes} on cpu")


def _inside(x: torch.Tensor) -> torch.Tensor:
    return x.inside if isinstance(x, OnGPU) else x


def _map(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Apply a function to all tensors; torch's own tree_map is slower."""
    if isinstance(value, dict):
        return {key: _map(function, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map(function, each) for each in value)
    return function(value) if isinstance(value, torch.Tensor) else value


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do what Tensor.to does, which asks C++ for devices."""
    device, dtype, waits_not, _ = torch._C._nn._parse_to(*args, **kwargs)
    device = args[0].device if isinstance(args[0], torch.Tensor) else device or self.device
    if device.type == self.device.type and dtype in (None, self.dtype):
        return self
    return torch.ops.aten._to_copy(self, dtype=dtype, device=device, non_blocking=waits_not)


@contextmanager
def pretended_gpu() -> Iterator[GPU]:
    """Let torch find a GPU of 80 GB within."""
    functional = torch.nn.functional
    stream = SimpleNamespace(is_capturing=lambda: False)
    with pytest.MonkeyPatch.context() as patch, GPU() as gpu:
        patch.setattr(torch.Tensor, "to", _to)
        patch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
        patch.setattr(functional, "one_hot", lambda x, n: torch.eye(n, device=x.device).long()[x])
        patch.setattr(torch.accelerator, "current_stream", lambda: stream)
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        memory = SimpleNamespace(total_memory=80 * 10**9)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            yield gpu
        finally:
            torch._C._set_only_lift_cpu_tensors(False)
            torch.__future__.set_overwrite_module_params_on_conversion(False)
