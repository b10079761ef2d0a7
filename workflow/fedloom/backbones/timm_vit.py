"""Check that FedLoom can run a ViT of timm, read its rotary positions, and pool its tokens."""

from typing import Any

import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from fedloom.backbones import eva_blocks
from fedloom.backbones.client_layers import Weights, apply_per_client
from fedloom.backbones.token_order import Rotary, TokenOrder
from fedloom.common.errors import FedLoomError


def check_type(model: nn.Module) -> None:
    """Check that a model is a ViT of timm that can be run block by block.

    Raises:
        FedLoomError: it is of another class, does not pool its tokens, or has blocks with rotary
            positions whose inside is unknown.
    """
    name = type(model).__name__
    if not isinstance(model, VisionTransformer | Eva) or not model.global_pool:
        raise FedLoomError(
            f"backbone {name}: must be a VisionTransformer or an Eva of timm that pools its "
            "tokens; choose another name (backbones.<label>.name)"
        )
    if isinstance(model, Eva) and not all(map(eva_blocks.is_readable, model.blocks)):
        raise FedLoomError(
            f"backbone {name}: must have timm's EvaBlock, with keys for every head, got blocks "
            "with norms behind them or shared keys; choose another name (backbones.<label>.name)"
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
