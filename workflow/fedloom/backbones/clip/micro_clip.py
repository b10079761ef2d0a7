"""The micro CLIP, a small CLIP of open_clip's own classes, which ships with FedLoom.

It is the default backbone for CLIP methods. When this module is imported, it registers the model
with open_clip, and the image tower with timm. The vocabulary has 49,408 rows. A file of weights
holds only the rows that training changed. The other rows are drawn again with the same seed.
"""

from pathlib import Path
from typing import Any

import open_clip
import safetensors.torch
import torch
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from fedloom.backbones.micro_vit import GREY_PREPROCESSING, micro_vit
from fedloom.common.seeds import torch_generator
from fedloom.machine.install import ROOT

MICRO_CLIP = "micro_clip"
# number of blocks of the image tower
MICRO_BLOCKS = 8
VOCABULARY = "token_embedding.weight"
ROWS_WEIGHT = "token_embedding.rows"

open_clip.add_model_config(ROOT / "workflow/resources/micro_clip.json")


@register_model
def micro_clip_vit(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Return the micro ViT with only the first eight of its blocks."""
    kwargs.setdefault("depth", MICRO_BLOCKS)
    return micro_vit(pretrained, **kwargs)


def fresh() -> open_clip.CLIP:
    """Return the untrained model.

    The vocabulary is drawn with a fixed seed, and all else from torch's global generator.
    """
    config: Any = open_clip.get_model_config(MICRO_CLIP)
    model = open_clip.CLIP(**config)
    open_clip.set_model_preprocess_cfg(model, {"size": 32, **GREY_PREPROCESSING})

    # draw the vocabulary as open_clip does, but with a fixed seed
    weight: Tensor = model.get_parameter(VOCABULARY)
    generator = torch_generator(0, f"{MICRO_CLIP}: vocabulary")
    weight.data = 0.02 * torch.randn(weight.shape, generator=generator)
    return model


def build_micro_clip(path: Path) -> open_clip.CLIP:
    """Return the model with the weights of a file.

    An error is raised if the file has weights of another model.
    """
    model = fresh()
    state = {name: value.float() for name, value in safetensors.torch.load_file(path).items()}

    # the file's rows of the vocabulary replace those that were drawn
    vocabulary = model.get_parameter(VOCABULARY).data.clone()
    vocabulary[state.pop(ROWS_WEIGHT).long()] = state[VOCABULARY]
    state[VOCABULARY] = vocabulary
    model.load_state_dict(state)
    return model
