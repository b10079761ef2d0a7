"""The cache of a dataset's features or patches, computed once per dataset and backbone."""

import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedloom.backbones.base import Backbone
from fedloom.common.io import replacing, temporary_folder
from fedloom.common.logs import progress
from fedloom.common.memory import CACHED_AT_ONCE
from fedloom.data.store import ImageStore


def write(
    backbone: Backbone,
    store: ImageStore,
    cache: str,
    path: Path,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the tensors of `backbone.compute_cache` for all N images to a safetensors file.

    Patches may be larger than memory: tensors [N, ...] are memory-mapped files beside `path`.

    Args:
        cache: "features" or "patches".
        dtype: of the file's tensors; default: that of compute_cache.
    """
    with temporary_folder(path) as folder:
        tensors: dict[str, Tensor] = {}
        with progress(len(store), f"{cache} of {len(store)} images") as bar:
            for rows in np.array_split(np.arange(len(store)), -(-len(store) // CACHED_AT_ONCE)):
                images = torch.from_numpy(store.images(rows)).to(backbone.device)
                for name, value in backbone.compute_cache(images, cache).items():
                    value = value.to(dtype or value.dtype)
                    if name not in tensors:
                        shape = (len(store), *value.shape[1:])
                        tensors[name] = _on_disk(folder / name, shape, value.dtype)
                    tensors[name][rows] = value.cpu()
                bar.update(len(rows))
        with replacing(path) as temporary:
            safetensors.torch.save_file(tensors, temporary)


def _on_disk(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Create a tensor whose memory is the new file `file`, on a disk that has room for it."""
    size = int(np.prod(shape))
    with file.open("wb") as stream:  # without room, a later write would end the process
        os.posix_fallocate(stream.fileno(), 0, max(1, size * dtype.itemsize))
    return torch.from_file(str(file), shared=True, size=size, dtype=dtype).view(shape)
