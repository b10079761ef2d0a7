"""Count the sizes of a backbone on the model itself, built on torch's meta device, without weights.

    python -m fedloom.backbones.sizes timm '{"name": "vit_base_patch16_224"}'

prints them as JSON for `fedloom.study.backbone_sizes`, since planning imports no torch.
"""

import json
import sys
from typing import Any

import open_clip
import timm
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedloom.backbones.clip import micro_clip  # registers its name with open_clip and timm
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.pixels import Pixels
from fedloom.backbones.resnet import FrozenResNet, build
from fedloom.backbones.vit import FrozenViT
from fedloom.common.errors import FedLoomError

VERSIONS = {
    "timm": timm.__version__,
    "open_clip": open_clip.__version__,
    "torchvision": torchvision.__version__,
}


def count(library: str, settings: dict[str, Any]) -> dict[str, float]:
    """Count what `fedloom.study.backbone_sizes.Sizes` holds.

    Args:
        settings: name, image_size and gradient_checkpointing of an entry of `backbones`.

    Raises:
        FedLoomError: the library has no such model, or FedLoom cannot read it.
    """
    name, size = settings["name"], settings.get("image_size")
    checkpointing = bool(settings.get("gradient_checkpointing"))
    try:
        with torch.device("meta"):
            if library == "open_clip":
                return _of_clip(name, checkpointing)
            if library == "torchvision":
                return _of_image_model(FrozenResNet(*build(name, size), "meta"), depth=0)
            given = {} if size is None else {"img_size": size}
            model: nn.Module = timm.create_model(name, num_classes=0, **given)
            vit = FrozenViT(model, "meta", gradient_checkpointing=checkpointing)
            return _of_image_model(vit, vit.depth)
    except FedLoomError:
        raise
    except Exception as error:  # the libraries raise whatever they like
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        line = f"backbone {name}: {library} {VERSIONS[library]} cannot build it: {reason}"
        raise FedLoomError(line) from error


def _of_image_model(backbone: FrozenViT | FrozenResNet, depth: int) -> dict[str, float]:
    """Count the sizes of a backbone that has an image tower alone."""
    return {
        "parameters": _parameters(backbone.model),
        "operations": _operations(backbone.model, backbone.pixels),
        "image_floats": backbone.image_floats,
        "training_bytes": backbone.training_bytes,
        "width": backbone.width,
        "depth": depth,
    }


def _of_clip(name: str, checkpointing: bool) -> dict[str, float]:
    """Count the sizes of both towers of a CLIP."""
    if name == micro_clip.NAME:
        model: nn.Module = micro_clip.fresh()
    else:
        model = open_clip.create_model(name, device="meta")
    clip = FrozenCLIP(model, open_clip.get_tokenizer(name), name, "meta", "float32", checkpointing)
    places = clip.model.context_length
    words = torch.zeros(1, places, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        clip.model.encode_text(words)
    return {
        "parameters": _parameters(model),
        "operations": _operations(clip.model.visual, clip.pixels),
        "image_floats": clip.image_floats,
        "training_bytes": clip.training_bytes,
        "width": clip.image_width,
        "depth": clip.image_depth,
        "text_width": clip.width,
        "text_depth": clip.text_depth,
        "token_operations": counter.get_total_flops() / places,
    }


def _parameters(model: nn.Module) -> int:
    """Return how many numbers the weights hold."""
    return sum(parameter.numel() for parameter in model.parameters())


def _operations(model: nn.Module, pixels: Pixels) -> int:
    """Return the operations of a forward pass of one image."""
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, pixels.channels, *pixels.size))
    return counter.get_total_flops()


if __name__ == "__main__":
    try:
        print(json.dumps(count(sys.argv[1], json.loads(sys.argv[2]))))
    except FedLoomError as error:
        sys.exit(str(error))
