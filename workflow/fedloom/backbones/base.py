"""Frozen backbones. The only place that knows the insides of timm and open_clip.

Shapes, everywhere: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes,
M blocks (numbered from 1), L text length.
"""

import hashlib
import importlib
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import nn

from fedloom.backbones.pixels import Pixels


class Backbone(Protocol):
    """The part of a backbone that the runtime uses; methods use that of FrozenViT or FrozenCLIP.

    Attributes:
        device: where the frozen weights are.
        pixels: turns images of the store into the backbone's input.
        image_floats: size of what an image is within the backbone: T d of T tokens.
        training_bytes: of what training keeps of an image for the backward pass.
    """

    device: torch.device
    pixels: Pixels
    image_floats: int
    training_bytes: int

    @property
    def model(self) -> nn.Module:
        """The library's model, frozen."""
        ...

    def compute_cache(self, images: torch.Tensor, cache: str) -> dict[str, torch.Tensor]:
        """Compute the tensors to cache for uint8 images [N, H, W, channels], by name.

        Args:
            cache: "features", or for a CLIP "patches", which are many times as large.
        """
        ...


def load(family: str, settings: dict[str, Any], device: torch.device | str = "cpu") -> Backbone:
    """Build a backbone of a family, vit or clip, from a label's settings.

    Raises:
        FedLoomError: see the family's own `load`.
    """
    return _module(family).load(settings, device)


def weights_digest(backbone: Backbone) -> str:
    """Compute the sha256 of a backbone's weights as they were loaded, by name, type and shape."""
    result = hashlib.sha256()
    for name, value in sorted(backbone.model.state_dict().items()):
        result.update(f"{name} {value.dtype} {[*value.shape]}".encode())
        result.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return result.hexdigest()


def shape_only(family: str, name: str) -> Backbone:
    """Build a backbone without its weights, for counting floats."""
    return _module(family).shape_only(name)


def _module(family: str) -> ModuleType:
    """Import a family's module when it is needed: open_clip takes seconds."""
    return importlib.import_module(f"fedloom.backbones.{family}")
