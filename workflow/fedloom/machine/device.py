"""Choose the device on which a job computes, and the number format of its products.

- `float32`: all computations are in float32.
- `tf32`: as float32, but products of float32 on a GPU keep only 10 bits of the fraction.
- `bf16`: the frozen backbone's products and attention are in bfloat16, by autocast; all other
  computations are in float32.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fedloom.common.errors import FedLoomError
from fedloom.machine import gpus
from fedloom.machine.job_events import with_event

log = logging.getLogger(__name__)
# the number formats of a frozen backbone's products; only caches use float16
AUTOCAST = {"bf16": torch.bfloat16, "float16": torch.float16}


def prepare_torch(threads: int, precision: str = "float32") -> torch.device:
    """Fix threads and arithmetic, take a GPU if the job asks for one, and return the device.

    Raises:
        FedLoomError: no GPU can be taken, torch cannot use it, or tf32 is asked for without a GPU.
    """
    gpus.acquire_gpu()
    prepare_cpu(threads)

    # cuBLAS reads this when CUDA starts; without it, two equal calls may give different bits
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    check_gpus()

    # the device, and its name for the log
    if torch.cuda.is_available():
        # only then does torch choose a fused attention whose backward pass is deterministic
        torch.use_deterministic_algorithms(True)
        device = torch.device("cuda")
        name = torch.cuda.get_device_name(device)
    else:
        device = torch.device("cpu")
        name = f"{threads} CPU core(s)"
    log.debug("device: %s", name, **with_event("device", text=name))

    # the arithmetic
    if precision == "tf32" and device.type == "cpu":
        raise FedLoomError("study.precision: tf32 needs a GPU; use float32 or bf16")
    _allow_tf32(precision == "tf32")
    return device


def prepare_cpu(threads: int) -> None:
    """Fix the number of threads, and make what CPU cores compute deterministic."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True, warn_only=True)

    # Otherwise torch would fill every new tensor before it is written. The attribute is not in
    # torch's types.
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False


def check_gpus() -> None:
    """Raise a FedLoomError if GPUs are visible and torch cannot use them."""
    if torch.cuda.is_available():
        return
    if unusable := gpus.visible():
        raise FedLoomError(
            f"GPU {', '.join(unusable)}: torch {torch.__version__}, built for CUDA "
            f"{torch.version.cuda}, cannot use it; install a driver or a torch that fits, or set "
            f"{gpus.VISIBLE}= to compute on CPU cores"
        )


def _allow_tf32(allowed: bool) -> None:
    """Allow or forbid tf32 in a GPU's products; by torch's default, convolutions may use it."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in float32 within the block, even if tf32 is allowed otherwise.

    The server needs this: tf32 is too inexact for its sums of differences.
    """
    before = bool(torch.backends.cuda.matmul.allow_tf32)
    _allow_tf32(False)
    try:
        yield
    finally:
        _allow_tf32(before)


def arithmetic(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context in which a frozen backbone computes its products in `precision`."""
    if precision not in AUTOCAST:
        return nullcontext()
    # autocast would cache only weights that require gradients, and a frozen backbone has none
    return torch.autocast(device.type, AUTOCAST[precision], cache_enabled=False)
