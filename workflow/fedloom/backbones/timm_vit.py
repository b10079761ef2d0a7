"""Check and read a ViT of timm, or one of parts: its sizes, rotary positions and pooled tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from timm.data.config import resolve_model_data_config
from timm.layers.patch_embed import PatchEmbed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fedloom.backbones import eva_blocks
from fedloom.backbones.client_layers import Weights, apply_per_client
from fedloom.backbones.token_order import Rotary, TokenOrder
from fedloom.backbones.vit_parts import ViTOfParts
from fedloom.common.errors import FedLoomError


class ViTFacts(NamedTuple):
    """The facts of a ViT.

    Attributes:
        has_class_token: True if the ViT puts a class token in front of the patches.
        order: how many tokens an image has, and where they stand.
        patch_size: side of a patch in pixels (the stride of the stem, if it has one).
        image_size: side of the input images, or height and width.
        channels: number of channels of the input images.
        preprocessing: the usual mean, std and interpolation of the input images.
        has_rotary: True if the blocks turn queries and keys by rotary positions.
    """

    has_class_token: bool
    order: TokenOrder
    patch_size: int
    image_size: int | Sequence[int]
    channels: int
    preprocessing: Mapping[str, Any]
    has_rotary: bool = False


def facts_of(model: Any) -> ViTFacts:
    """Return the facts of a ViT of timm, or of one of parts."""
    if isinstance(model, ViTOfParts):
        transform = model.transform
        return ViTFacts(
            has_class_token=model.has_class_token,
            order=model.order,
            patch_size=model.patch_size,
            image_size=transform.size,
            channels=transform.channels,
            preprocessing=transform._asdict(),
        )

    # the size of the input images is the stem's, since the pretrained config's may differ
    stem = model.patch_embed
    return ViTFacts(
        has_class_token=model.cls_token is not None,
        order=TokenOrder(model.num_prefix_tokens, stem.num_patches),
        patch_size=stem.patch_size[0],
        image_size=stem.img_size,
        channels=next(p for p in stem.parameters() if p.dim() == 4).shape[1],
        preprocessing=resolve_model_data_config(model),
        has_rotary=getattr(model, "rope", None) is not None,
    )


def check_type(model: nn.Module, name: str) -> None:
    """Check that a model is a ViT of timm, or one of parts, that can be run block by block.

    Args:
        model: the model.
        name: its name in the config, with which an error begins.

    Raises:
        FedLoomError: it is of another class, does not pool its tokens, or has blocks with rotary
            positions whose inside is unknown; or its images cannot be cut into patches.
    """
    if isinstance(model, ViTOfParts):
        return
    if not isinstance(model, VisionTransformer | Eva) or not model.global_pool:
        raise FedLoomError(
            f"backbone {name}: must be a VisionTransformer or an Eva of timm that pools its "
            f"tokens, got a {type(model).__name__}; choose another name (backbones.<label>.name)"
        )
    if isinstance(model, Eva) and not all(map(eva_blocks.is_readable, model.blocks)):
        raise FedLoomError(
            f"backbone {name}: must have timm's EvaBlock, with keys for every head, got blocks "
            "with norms behind them or shared keys; choose another name (backbones.<label>.name)"
        )
    _check_image_size(model, name)


def _check_image_size(model: Any, name: str) -> None:
    """Check that a ViT of timm can cut its images into patches.

    A stem for one image size leaves out what does not fill a patch; others refuse it.

    Raises:
        FedLoomError: the image size must be a multiple of the patch size, and is not.
    """
    stem = model.patch_embed
    if not isinstance(stem, PatchEmbed) or stem.strict_img_size or stem.dynamic_img_pad:
        return
    sides: Any = stem.img_size
    for side, patch in zip(sides, stem.patch_size, strict=True):
        if side % patch:
            raise FedLoomError(
                f"backbone {name}: image_size must be a multiple of {patch}, the side of a patch, "
                f"got {side}; set it to {side - side % patch} or {side - side % patch + patch}"
            )


def rotary_positions(
    model: Any, order: TokenOrder, channels: int, device: torch.device
) -> list[Rotary | None]:
    """Return the rotary positions of each block; None where there are none."""
    if getattr(model, "rope", None) is None:
        return [None] * len(model.blocks)

    # timm gives them with the embedding of an image, for its grid of patches
    with torch.no_grad():
        number_format = next(model.parameters()).dtype
        shape = (1, channels, *model.patch_embed.img_size)
        image = torch.zeros(shape, dtype=number_format, device=device)
        table = model._pos_embed(model.patch_embed(image))[1]

    # with mixed positions, each block and each head has its own
    tables = [table] * len(model.blocks)
    if model.rope_mixed:
        tables = list(table)
    halves = model.blocks[0].attn.rotate_half
    return [Rotary(one, order, halves) for one in tables]


def pool_tokens(model: Any, order: TokenOrder, tokens: Tensor, weights: Weights) -> Tensor:
    """Return the feature [..., d] that a ViT pools from its own tokens [..., T, d] after the norm.

    `weights` are the clients' weights of an attention that pools, by name within it.
    """
    if model.attn_pool is None:
        return model.pool(tokens.flatten(0, -3)).unflatten(0, tokens.shape[:-2])

    # an attention over the patches, and in some ViTs over all tokens
    includes_prefix = getattr(model, "pool_include_prefix", isinstance(model, Eva))
    if not includes_prefix:
        tokens = tokens[..., order.prefix :, :]
    if weights:
        return apply_per_client(model.attn_pool, tokens, weights)
    return model.attn_pool(tokens.flatten(0, -3)).unflatten(0, tokens.shape[:-2])
