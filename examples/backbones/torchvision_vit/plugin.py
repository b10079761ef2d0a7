"""The ViTs of torchvision, with its weights, or those of a file with its names.

Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from fedloom.backbones.backbone_toolbox import FedLoomError, Transform, ViTParts, check_model

# the parts of torchvision's EncoderBlock, by their roles
BLOCK_PARTS = {
    "heads": "num_heads",
    "norm1": "ln_1",
    "in_weight": "self_attention.in_proj_weight",
    "in_bias": "self_attention.in_proj_bias",
    "proj": "self_attention.out_proj",
    "norm2": "ln_2",
    "fc1": "mlp.0",
    "activation": "mlp.1",
    "fc2": "mlp.3",
}


class Embedding(nn.Module):
    """The patches of images as tokens, behind the class token, plus their positions."""

    def __init__(self, vit: VisionTransformer):
        super().__init__()
        self.patches = vit.conv_proj
        self.class_token = vit.class_token
        self.positions = vit.encoder.pos_embedding

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens [N, T, d] for normalised images [N, 3, H, W]."""
        patches = self.patches(images).flatten(2).mT
        class_tokens = self.class_token.expand(len(images), -1, -1)
        return torch.cat([class_tokens, patches], 1) + self.positions


def build(settings: dict[str, Any]) -> nn.Module:
    """Return a ViT without its head; with the weights `hub`, those that torchvision downloads."""
    check_model(settings["name"], list_models(include="vit_*"), "torchvision")
    size = transform(settings).size
    vit: Any = get_model(settings["name"], weights=None, image_size=size)
    vit.heads = nn.Identity()
    if settings["weights"] == "hub":
        tensors = _weights(settings).get_state_dict(check_hash=True, weights_only=True)
        vit.load_state_dict(convert(tensors, vit))
    return vit


def convert(tensors: dict[str, Tensor], vit: Any) -> dict[str, Tensor]:
    """Return the tensors of a file without the head, with positions for the model's image size."""
    own: Any = {name: value for name, value in tensors.items() if not name.startswith("heads.")}
    return dict(interpolate_embeddings(vit.image_size, vit.patch_size, own))


def transform(settings: dict[str, Any]) -> Transform:
    """Return how images become the input of the model."""
    usual = _weights(settings).transforms()
    size = settings.get("image_size", usual.crop_size[0])
    return Transform(size, usual.mean, usual.std, usual.interpolation.value)


def blocks(vit: Any) -> ViTParts:
    """Return the parts of the model."""
    return ViTParts(
        embedding=Embedding(vit),
        blocks=list(vit.encoder.layers),
        norm=vit.encoder.ln,
        patch_size=vit.patch_size,
        block_parts=BLOCK_PARTS,
    )


def _weights(settings: dict[str, Any]) -> Any:
    """Return torchvision's entry of the weights with the tag; raise a FedLoomError without one."""
    known = get_model_weights(settings["name"]).__members__
    if settings["tag"] not in known:
        raise FedLoomError(
            f"backbone {settings['name']}: tag must be one of {', '.join(known)}, got "
            f"'{settings['tag']}'"
        )
    return known[settings["tag"]]
