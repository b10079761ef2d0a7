"""Compile frozen blocks with torch.compile, for the steps of a round that are alike.

Without it, a block reads and writes all its tokens in every norm, cast, activation and addition.
Compiled, these operations become a few, so that a GPU starts fewer operations and moves fewer
bytes. Two rules keep a resumed run equal to one that was not stopped, bit for bit:

1. Each shape is compiled for itself, and never for several shapes, since torch might otherwise
   compute a shape differently after it has met others.
2. Whether a step is compiled follows from the step alone: if no client of the cohort has finished,
   and at least one of them has a full batch, to which the others are filled up. Steps with other
   shapes, of which there are many, and evaluations are computed without compiling.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch

from fedloom.machine.job_events import with_event

log = logging.getLogger(__name__)
# a job meets a few shapes, and each of them takes several of these: blocks that are read whole or
# in part, for images and for texts
SHAPES = 256
# the oldest GPUs that Triton compiles for
OLDEST_GPU = (7, 0)

_wanted: ContextVar[bool] = ContextVar("blocks_are_compiled", default=False)


def can_compile(setting: str | bool, device: torch.device) -> bool:
    """Return True if blocks are to be compiled on a device under the setting `study.compile`.

    "auto" compiles on a GPU. If true or "auto" asks for what this machine cannot do, a line in the
    log says why, and blocks are computed without compiling.
    """
    if setting is False or (setting == "auto" and device.type == "cpu"):
        return False
    reason = _why_not(device)
    if reason:
        text = f"study.compile: {reason}, so blocks are computed without compiling"
        log.warning(text, **with_event("note", text=text))
    return not reason


@cache
def _why_not(device: torch.device) -> str:
    """Return why torch cannot compile for a device; "" if it can."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if torch.cuda.get_device_capability(device) < OLDEST_GPU:
            return f"{torch.cuda.get_device_name(device)} is too old for Triton"
        if not has_triton():
            return "Triton is not installed"
        return ""

    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler"
    return ""


@contextmanager
def compile_blocks(wanted: bool) -> Iterator[None]:
    """Compile the frozen blocks that are called within this context, if `wanted`."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def are_compiled() -> bool:
    """Return True within the context `compile_blocks(True)`."""
    return _wanted.get()


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled for each shape of its tensors, the first time it occurs.

    torch keeps what it has compiled in a folder of this machine (TORCHINDUCTOR_CACHE_DIR), so that
    the next job only looks it up.
    """
    from torch._dynamo import config

    config.recompile_limit = SHAPES
    config.accumulated_recompile_limit = SHAPES
    return torch.compile(function, dynamic=False, fullgraph=True)
