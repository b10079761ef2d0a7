"""Images with other pixels, and what the frozen backbone makes of them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.toolbox import Federation, Task

AT_ONCE = 128  # largest number of images whose features are computed together
Paint = Callable[[np.ndarray], np.ndarray]  # images uint8 [n, H, W, channels] -> the same, changed


class RepaintedStore:
    """An image store that changes the pixels of some images when they are read."""

    def __init__(self, store: Any, changed: np.ndarray, paint: Paint):
        """Take the store, a mask [N] of the images that change, and what changes their pixels."""
        self.store = store
        self.changed = changed
        self.paint = paint

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def __len__(self) -> int:
        return len(self.store)

    def images(self, index: np.ndarray) -> np.ndarray:
        """Return the images at the rows `index` [...], uint8 [..., H, W, channels]."""
        pixels = self.store.images(index)
        changed = self.changed[index]
        pixels[changed] = self.paint(pixels[changed])
        return pixels


def repaint_images(task: Task, data: Federation, rows: np.ndarray, paint: Paint) -> Federation:
    """Return the data, in which `paint` has changed the pixels of the images `rows` [n].

    Features and patches of the changed images replace those of the cache. They are computed when
    the method first reads its cache.
    """
    changed = np.zeros(len(data.store), bool)
    changed[rows] = True
    store = RepaintedStore(data.store, changed, paint)

    @cache
    def changed_cache(kind: str) -> dict[str, Tensor]:
        """Return what the backbone caches of the changed images [n, ...], by name."""
        parts = np.array_split(rows, -(-len(rows) // AT_ONCE))
        images = (torch.from_numpy(store.images(part)).to(data.device) for part in parts)
        made = [task.backbone.compute_cache(each, kind) for each in images]
        return {name: torch.cat([each[name] for each in made]) for name in made[0]}

    def replace_rows(table: Tensor, new: Tensor) -> Tensor:
        """Return a copy of the cache [N, ...] with the rows of the changed images replaced."""
        table = table.clone()
        table[rows] = new.to(table)
        return table

    @cache
    def tokens(block: int | None) -> Tensor:
        """Return class tokens [N, d] at the input of a block, from 1, or the final ones (None)."""
        table = data.tokens(block)  # raises an error if the method declares no cache
        made = changed_cache("features")
        return replace_rows(table, made["final"] if block is None else made["inputs"][:, block - 1])

    before = data.patches
    if before is None:
        return replace(data, store=store, tokens=tokens)
    patches = cache(lambda: replace_rows(before(), changed_cache("patches")["patches"]))
    return replace(data, store=store, tokens=tokens, patches=patches)
