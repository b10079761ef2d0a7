"""Write the cache of features or patches of all images, once per dataset and backbone."""

import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedloom.backbones.backbone import Backbone
from fedloom.common.files import atomic_write, temporary_folder
from fedloom.data.store import ImageStore
from fedloom.machine.memory import CACHED_AT_ONCE
from fedloom.machine.process_log import progress


def write_cache(
    backbone: Backbone,
    store: ImageStore,
    cache: str,
    path: Path,
    dtype: torch.dtype | None = None,
    at_once: int = CACHED_AT_ONCE,
) -> None:
    """Write the tensors of `backbone.compute_cache` for all images to the file `path`.

    Patches may be larger than memory. So each tensor is first a memory-mapped file next to `path`.

    Args:
        cache: "features" or "patches".
        dtype: the type of the stored tensors; None: the type in which they are computed.
        at_once: the largest number of images that are computed together.
    """
    count = len(store)
    tensors = dict[str, Tensor]()
    with temporary_folder(path) as folder:
        # compute part by part, so that only one part is in memory
        with progress(count, f"{cache} of {count} images") as bar:
            for rows in np.array_split(np.arange(count), -(-count // at_once)):
                images = torch.from_numpy(store.images(rows)).to(backbone.device)
                for name, value in backbone.compute_cache(images, cache).items():
                    value = value.to(dtype or value.dtype)
                    if name not in tensors:
                        tensors[name] = _on_disk(folder / name, count, value)
                    tensors[name][rows] = value.cpu()
                bar.update(len(rows))

        with atomic_write(path) as temporary:
            safetensors.torch.save_file(tensors, temporary)


def _on_disk(file: Path, count: int, like: Tensor) -> Tensor:
    """Return an empty tensor [count, ...] whose memory is the new file `file`.

    Its type and further axes are those of `like`.

    Raises:
        OSError: the disk has too little room.
    """
    size = count * like[0].numel()
    # reserve the room now: if the disk were full later, a write to this memory would kill the
    # process
    with file.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, max(1, size * like.dtype.itemsize))
    whole = torch.from_file(str(file), shared=True, size=size, dtype=like.dtype)
    return whole.view(count, *like.shape[1:])
