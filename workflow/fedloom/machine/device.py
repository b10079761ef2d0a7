"""The device and the number format in which torch computes in a job.

With `tf32` a GPU's products of float32 keep 10 bits of the fraction. With `bf16` the frozen
backbone's products and attention are in bfloat16, by autocast; all else is always float32.
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
# formats of a frozen backbone's products; float16 is of caches alone
AUTOCAST = {"bf16": torch.bfloat16, "float16": torch.float16}


def prepare_torch(threads: int, precision: str = "float32") -> torch.device:
    """Fix threads and arithmetic, take a GPU if the job asks for one, and return the device."""
    gpus.acquire_gpu()
    prepare_cpu(threads)

    # cuBLAS reads this when CUDA starts, and gives the same bits twice only with it
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    check_gpus()

    # the device, and its name for the log
    if torch.cuda.is_available():
        # only so does torch choose fused attention whose backward pass gives the same bits twice
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
    """Fix threads and arithmetic of a job that computes on CPU cores alone."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True, warn_only=True)

    # or torch would write all results twice; types do not know the attribute
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False


def check_gpus() -> None:
    """Check that torch can use the GPUs that are visible, if there are any."""
    if torch.cuda.is_available():
        return
    if unusable := gpus.visible():
        raise FedLoomError(
            f"GPU {', '.join(unusable)}: torch {torch.__version__}, built for CUDA "
            f"{torch.version.cuda}, cannot use it; install a driver or a torch that fits, or set "
            f"{gpus.VISIBLE}= to compute on CPU cores"
        )


def _allow_tf32(allowed: bool) -> None:
    """Allow tf32 in a GPU's products, or forbid it: by torch's default, convolutions use it."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in float32 within: for the server, whose sums of differences tf32 would spoil."""
    before = bool(torch.backends.cuda.matmul.allow_tf32)
    _allow_tf32(False)
    try:
        yield
    finally:
        _allow_tf32(before)


def arithmetic(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context of a frozen backbone's products."""
    if precision not in AUTOCAST:
        return nullcontext()
    # autocast's cache of cast weights keeps none that are frozen
    return torch.autocast(device.type, AUTOCAST[precision], cache_enabled=False)
