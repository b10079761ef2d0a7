"""Count the sizes of a backbone on the model itself, built on torch's meta device, without weights.

    python -m fedloom.backbones.sizes timm '{"name": "vit_base_patch16_224"}'

prints them as JSON for `fedloom.study.backbone_sizes`, since planning imports no torch.
"""

import json
import sys
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedloom.backbones import base
from fedloom.common.errors import FedLoomError
from fedloom.config.settings import FAMILIES


def count(library: str, settings: dict[str, Any]) -> dict[str, float]:
    """Count what `fedloom.study.backbone_sizes.Sizes` holds.

    Of `settings`, an entry of `backbones`, only name and image_size are read.
    """
    known = {key: settings[key] for key in ("name", "image_size") if key in settings}
    spec, family = known | {"weights": "none"}, FAMILIES[library]
    with torch.device("meta"):
        backbone: Any = base.load(family, spec, "meta")
        model, pixels, clip = backbone.model, backbone.pixels, family == "clip"
        with FlopCounterMode(display=False) as of_image:
            (model.visual if clip else model)(torch.zeros(1, pixels.channels, *pixels.size))
        sizes = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "operations": of_image.get_total_flops(),
            "image_floats": backbone.image_floats,
            "training_bytes": backbone.training_bytes,
            "width": backbone.image_width if clip else backbone.width,
            "depth": backbone.image_depth if clip else getattr(backbone, "depth", 0),
        }
        if not clip:
            return sizes
        places = model.context_length
        with FlopCounterMode(display=False) as of_text:
            model.encode_text(torch.zeros(1, places, dtype=torch.int64))
        return sizes | {
            "text_width": backbone.width,
            "text_depth": backbone.text_depth,
            "token_operations": of_text.get_total_flops() / places,
        }


if __name__ == "__main__":
    try:
        print(json.dumps(count(sys.argv[1], json.loads(sys.argv[2]))))
    except FedLoomError as error:
        sys.exit(str(error))
