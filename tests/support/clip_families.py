"""Small models of the CLIP families, of open_clip's and timm's own classes, by open_clip's config.

They are registered with open_clip as `tiny-<family>`, and their image towers with timm.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import open_clip
import tokenizers
import torch
from timm.models import build_model_with_cfg, register_model
from timm.models.convnext import ConvNeXt
from timm.models.fastvit import FastVit
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from fedloom.backbones.clip.hub_tokenizer import HubTokenizer
from fedloom.backbones.clip.model import FrozenCLIP
from hub_tokenizers import PLACES, VOCABULARY, WRITERS

WIDTH = 16
JOINT = 24
TEXT = {"width": WIDTH, "heads": 2, "layers": 2}
# without a mask and read at the EOT, as MobileCLIP is; or read at the last place, as SigLIP is
MOBILE_TEXT = TEXT | {"no_causal_mask": True}
SIGLIP_TEXT = TEXT | {
    "context_length": PLACES,
    "vocab_size": VOCABULARY,
    "tokenizer_kwargs": {"clean": "canonicalize"},
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
    "norm_kwargs": {"eps": 1e-6},
}
SIGLIP_IMAGE = {"timm_model_name": "tiny_siglip_vit", "timm_pool": "map", "timm_proj": "none"}


@register_model
def tiny_fastvit(pretrained: bool = False, **kwargs: Any) -> FastVit:
    """Return the image tower of a tiny MobileCLIP, whose last stage has attention."""
    mixers = ("repmixer", "repmixer", "repmixer", "attention")
    # attention has heads of 32 numbers
    sizes = {"layers": (1, 1, 1, 1), "embed_dims": (4, 8, 16, 32), "mlp_ratios": (2, 2, 2, 2)}
    squeezes = (False, False, True, True)
    parts = {"token_mixers": mixers, "se_downsamples": squeezes, "lkc_use_act": True}
    return _build(FastVit, "tiny_fastvit", **sizes, **parts, **kwargs)


@register_model
def tiny_convnext(pretrained: bool = False, **kwargs: Any) -> ConvNeXt:
    """Return the image tower of a tiny ConvNeXt CLIP."""
    sizes = {"depths": (1, 1, 1, 1), "dims": (4, 8, 16, 32)}
    return _build(ConvNeXt, "tiny_convnext", **sizes, **kwargs)


@register_model
def tiny_siglip_vit(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Return the image tower of a tiny SigLIP: no class token, but attention pooling."""
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": JOINT, "depth": 3, "num_heads": 2}
    no_class = {"class_token": False, "act_layer": "gelu_tanh"}
    return _build(VisionTransformer, "tiny_siglip_vit", **sizes, **no_class, **kwargs)


def _build(kind: type, name: str, **kwargs: Any) -> Any:
    """Return a model of a class of timm, with the attributes that timm gives to its own."""
    kwargs["pretrained_cfg"] = {"input_size": (3, 32, 32)}
    return build_model_with_cfg(kind, name, pretrained=False, **kwargs)


CONFIGS = {
    "mobileclip": {
        "vision_cfg": {
            "timm_model_name": "tiny_fastvit",
            "timm_pool": "avg",
            "timm_proj": None,
            "image_size": 64,
        },
        "text_cfg": MOBILE_TEXT,
        "custom_text": True,
    },
    "convnext": {
        "vision_cfg": {
            "timm_model_name": "tiny_convnext",
            "timm_pool": "",
            "timm_proj": "mlp",
            "image_size": 32,
        },
        "text_cfg": TEXT,
    },
    "siglip": {
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": SIGLIP_IMAGE | {"image_size": 16},
        "text_cfg": SIGLIP_TEXT | {"hf_tokenizer_name": "tiny/siglip"},
    },
    "siglip2": {
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": SIGLIP_IMAGE | {"image_size": 16},
        "text_cfg": SIGLIP_TEXT
        | {"hf_tokenizer_name": "tiny/siglip2", "act_kwargs": {"approximate": "tanh"}},
    },
}
FAMILIES = tuple(CONFIGS)
# removed when the process ends
FOLDER = TemporaryDirectory(prefix="fedloom-families-")


@cache
def folder_of_families() -> Path:
    """Return a folder with a config and, for SigLIP, a tokenizer of each family."""
    folder = Path(FOLDER.name)
    for family, config in CONFIGS.items():
        file = folder / f"tiny-{family}.json"
        file.write_text(json.dumps({"embed_dim": JOINT, **config}))
        open_clip.add_model_config(file)
        if family in WRITERS:
            WRITERS[family](folder / family)
    return folder


def model_of(family: str) -> Any:
    """Return a model in evaluation mode, with parameters and statistics off their first values."""
    folder_of_families()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = open_clip.create_model(f"tiny-{family}").eval()
        for value in (*model.parameters(), *model.buffers()):
            if value.dim() == 1 and value.is_floating_point():
                value.data += 0.1 * torch.rand_like(value)
    return model


def tokenizer_of(family: str) -> Any:
    """Return the tokenizer of a family's models, as FedLoom reads it."""
    if family not in WRITERS:
        return open_clip.SimpleTokenizer()
    folder = folder_of_families() / family
    tokenizer = HubTokenizer(f"tiny-{family}", f"tiny/{family}", "canonicalize", folder)
    tokenizer.read()
    return tokenizer


def frozen(family: str, model: Any = None) -> FrozenCLIP:
    """Return the backbone of a family, with random weights, or with those of `model`."""
    return FrozenCLIP(model or model_of(family), tokenizer_of(family), f"tiny-{family}")


def tokenize(family: str, texts: Sequence[str]) -> Tensor:
    """Return the tokens [N, places] of clean texts, all places filled, as open_clip has them.

    For SigLIP, the library `tokenizers` puts in EOS and fills up, as its file says.
    """
    if family not in WRITERS:
        return open_clip.tokenize([*texts])
    file = folder_of_families() / family / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    filler = {"siglip": (1, "</s>"), "siglip2": (0, "<pad>")}[family]
    tokenizer.enable_padding(pad_id=filler[0], pad_token=filler[1], length=PLACES)
    return torch.tensor([each.ids for each in tokenizer.encode_batch(list(texts))])
