"""Count the sizes of a backbone on its model, which is built on torch's meta device.

    python -m fedloom.backbones.sizes timm '{"name": "vit_base_patch16_224"}'

prints the sizes as JSON. `planning/resources/backbone_sizes.py` runs this as a process of its own,
because planning does not import torch.
"""

import contextlib
import json
import sys
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedloom.backbones.backbone import load_backbone
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.config.settings import family_of
from fedloom.machine.memory import SAVED_FLOATS


def count(library: str, settings: JsonDict) -> dict[str, float]:
    """Return the fields of `Sizes` in planning for a backbone with random weights.

    `settings` are those that change sizes, such as name and image_size.
    """
    untrained = settings | {"weights": "none"}
    family = family_of(library)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        backbone: Any = load_backbone(library, untrained, "meta")
        model = backbone.model
        pixels = backbone.pixels
        # building a backbone may take a pass, which must not count
        built = counter.get_total_flops()

        # count a pass of an image
        getattr(model, "visual", model)(torch.zeros(1, pixels.channels, *pixels.size))
        operations = counter.get_total_flops() - built

        sizes = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "operations": operations,
            "image_floats": backbone.image_floats,
            "training_bytes": backbone.training_bytes,
            "width": getattr(backbone, "image_width", backbone.width),
            "depth": getattr(backbone, "image_depth", getattr(backbone, "depth", 0)),
        }
        if family == "vit":
            sizes["has_class_token"] = backbone.has_class_token
            if backbone.saved_floats != SAVED_FLOATS:
                sizes["saved_floats"] = backbone.saved_floats
        if family != "clip":
            return sizes

        # count a pass of a text
        places = model.context_length
        model.encode_text(torch.zeros(1, places, dtype=torch.int64))
        text_operations = counter.get_total_flops() - built - operations
        sizes["text_width"] = backbone.width
        sizes["text_depth"] = backbone.text_depth
        sizes["token_operations"] = text_operations / places

        # what its towers give and take, if that is not what most do
        if not backbone.has_patches:
            sizes["has_patches"] = False
        if backbone.text_places:
            sizes["text_places"] = backbone.text_places
        return sizes


if __name__ == "__main__":
    try:
        # a plugin may print; the result must be all of the output
        with contextlib.redirect_stdout(sys.stderr):
            counted = count(sys.argv[1], json.loads(sys.argv[2]))
    except FedLoomError as error:
        sys.exit(str(error))
    print(json.dumps(counted))
