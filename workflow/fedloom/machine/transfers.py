"""Copy arrays to a GPU, and say what fits into its memory."""

import numpy as np
import torch

from fedloom.machine import memory


def fits_on_gpu(size: int, device: torch.device) -> bool:
    """Return True if `size` bytes may stay on the device; False for a CPU, which reads files."""
    return device.type == "cuda" and memory.stays_on_gpu(size, gpu_bytes(device))


def gpu_bytes(device: torch.device) -> int:
    """Return the memory of a GPU in bytes."""
    return torch.cuda.get_device_properties(device).total_memory


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy values to the device without waiting for its queued work."""
    return pinned(torch.from_numpy(values), device).to(device, non_blocking=True)


def pinned(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values on the CPU, for a GPU in pinned memory, which it can read while both work."""
    if device.type == "cuda":
        return values.pin_memory()
    return values
