"""The micro CLIP: the embedded default of the CLIP family, of open_clip's own classes.

Importing this module registers it with open_clip and its image tower with timm. Of the 49,408 rows
of the vocabulary, a file of weights holds those that training moved; the others are drawn again.
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
    """Build the micro ViT with the first eight of its blocks."""
    kwargs.setdefault("depth", MICRO_BLOCKS)
    return micro_vit(pretrained, **kwargs)


def fresh() -> open_clip.CLIP:
    """Build the untrained model; all but its vocabulary is drawn from torch's global stream."""
    config: Any = open_clip.get_model_config(MICRO_CLIP)
    model = open_clip.CLIP(**config)
    open_clip.set_model_preprocess_cfg(model, {"size": 32, **GREY_PREPROCESSING})

    # the vocabulary, as open_clip draws it, but with a seed
    weight: Tensor = model.get_parameter(VOCABULARY)
    generator = torch_generator(0, f"{MICRO_CLIP}: vocabulary")
    weight.data = 0.02 * torch.randn(weight.shape, generator=generator)
    return model


def build(path: Path) -> open_clip.CLIP:
    """Build the model with the weights of a file, which raises for those of another model."""
    model = fresh()
    state = {name: value.float() for name, value in safetensors.torch.load_file(path).items()}

    # the rows of the vocabulary that the file holds, in place of those that were drawn
    vocabulary = model.get_parameter(VOCABULARY).data.clone()
    vocabulary[state.pop(ROWS_WEIGHT).long()] = state[VOCABULARY]
    state[VOCABULARY] = vocabulary
    model.load_state_dict(state)
    return model
