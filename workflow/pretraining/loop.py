"""What the pretraining of both micro backbones shares: images, steps, files."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fedloom.common.files import atomic_write, canonical
from fedloom.data.sources import glyphs

log = logging.getLogger(__name__)


class Schedule(Protocol):
    """What `descend` reads of a recipe."""

    @property
    def steps(self) -> int: ...
    @property
    def peak_rate(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...


def descend(
    loss: Callable[[int], tuple[Tensor, Tensor]],
    parameters: list[nn.Parameter],
    recipe: Schedule,
    spared: Sequence[nn.Parameter] = (),
) -> None:
    """Minimise a loss with AdamW under OneCycle: up over 5% of the steps, then a cosine to 0.

    Args:
        loss: of a step (from 1), and which of its examples were right (bool), for the log.
        spared: of the matrices, those without weight decay; vectors have none.
    """
    free = {id(p) for p in spared}
    decayed = [p for p in parameters if p.ndim > 1 and id(p) not in free]
    others = [p for p in parameters if p.ndim <= 1 or id(p) in free]
    optimiser = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.peak_rate,
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.peak_rate, total_steps=recipe.steps, pct_start=0.05, cycle_momentum=False
    )
    start = said = time.monotonic()
    for step in range(1, recipe.steps + 1):
        value, right = loss(step)
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
        optimiser.step()
        schedule.step()
        now = time.monotonic()
        if now - said >= 15 or step == recipe.steps:
            said = now
            pace = (now - start) / step
            log.info(
                "step %d of %d, loss %.3f, right %.2f, %.3f s a step, %.1f min left",
                *(step, recipe.steps, value.item(), right.float().mean().item(), pace),
                (recipe.steps - step) * pace / 60,
            )


def batches(count: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield row numbers, int64 [batch], epoch after epoch; the rest of an epoch is left out."""
    batch = min(batch, count)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: count - count % batch].view(-1, batch)


def augment(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Change every image [B, 32, 32] in its own way, and return float32 [B, 1, 32, 32], normalised.

    Stroke width, an affine map with a smooth warp, loss of resolution (down to 8 x 8, as the
    smallest scans have it), contrast and noise; all in proportion to `strength`, 0..1.
    """
    batch = len(images)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator)

    x = images[:, None].float() / 255
    bolder = strength * uniform(
        -0.5, 0.8, batch, 1, 1, 1
    )  # share of the way to one pixel thinner / bolder
    x = torch.where(
        bolder > 0,
        x.lerp(F.max_pool2d(x, 3, 1, 1), bolder.clamp(min=0)),
        x.lerp(-F.max_pool2d(-x, 3, 1, 1), (-bolder).clamp(min=0)),
    )

    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    affine = torch.from_numpy(glyphs.jitters(rng, batch, noise=1.5 * strength)).float()
    warp = 0.05 * strength * torch.randn(batch, 2, 4, 4, generator=generator)
    warp = F.interpolate(warp, size=x.shape[2:], mode="bicubic").permute(0, 2, 3, 1)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False) + warp
    x = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    # a quarter of the images (at full strength) lose 3 of 4 pixels a side, a quarter every other
    coarse = torch.rand(batch, 1, 1, 1, generator=generator) / max(strength, 1e-6)
    for low, factor in ((0.0, 4), (0.25, 2)):
        small = F.interpolate(F.avg_pool2d(x, factor), scale_factor=factor, mode="bilinear")
        x = torch.where((low <= coarse) & (coarse < low + 0.25), small, x)

    x = x * (1 - strength * uniform(0.0, 0.4, batch, 1, 1, 1))
    grain = strength * uniform(0.0, 0.06, batch, 1, 1, 1)
    x = x + grain * torch.randn(x.shape, generator=generator)
    return x.clamp(0, 1) * 2 - 1  # the model's mean 0.5, std 0.5


def write(path: Path, tensors: dict[str, Tensor], about: dict) -> None:
    """Write safetensors with one metadata key, `fedloom`: canonical JSON.

    One key, because a file with several differs from process to process.
    """
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, {"fedloom": canonical(about)})


def digest(classes: Sequence[str]) -> str:
    """Return the sha256 of the classes' characters, which says what a file was trained on."""
    return hashlib.sha256("".join(classes).encode()).hexdigest()
