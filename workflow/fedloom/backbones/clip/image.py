"""The image towers of open_clip models, each read at its class token and at its patches.

The last step of a tower (norm and projection, or attention pool) treats all tokens alike, so that
it maps patches into the joint space as well, where FedOTP needs them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from open_clip.modified_resnet import AttentionPool2d, ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import ResidualAttentionBlock, VisionTransformer
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn

from fedloom.backbones.blocks import (
    EVERY,
    Inserts,
    Parts,
    Weights,
    below,
    known_parts,
    layer,
    per_client,
    read_block,
    run_blocks,
)
from fedloom.common.errors import FedLoomError

NAMES = {  # of the parts of an open_clip block
    "norm1": "ln_1",
    "in_weight": "attn.in_proj_weight",
    "in_bias": "attn.in_proj_bias",
    "proj": "attn.out_proj",
    "scale1": "ls_1",
    "norm2": "ln_2",
    "fc1": "mlp.c_fc",
    "activation": "mlp.gelu",
    "fc2": "mlp.c_proj",
    "scale2": "ls_2",
}


@known_parts.register
def _(block: ResidualAttentionBlock) -> Parts:
    return Parts(block, NAMES, block.attn.num_heads)


def tokens(tower: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return class tokens [N, d_joint] and T patches [N, T, d_joint] of images [N, 3, H, W]."""
    if isinstance(tower, VisionTransformer):
        x = tower._embeds(x)  # [N, 1 + T, d]
        for block in tower.transformer.resblocks:
            x = read_block(block, x, EVERY)
        x = tower.ln_post(x)
        x = x if tower.proj is None else x @ tower.proj
        return x[:, 0], x[:, 1:]
    if isinstance(tower, ModifiedResNet):
        x = tower.layer4(tower.layer3(tower.layer2(tower.layer1(tower.stem(x)))))
        x = _attention_pool(tower.attnpool, x)
        return x[:, 0], x[:, 1:]
    trunk = tower.trunk
    x = tower.head(trunk.head(trunk.fc_norm(trunk.forward_features(x))))
    return x[:, 0], x[:, trunk.num_prefix_tokens :]


class _Embedding(nn.Module):
    """What a tower does before its first block, as a module that weights can be given to."""

    def __init__(self, tower: Any):
        super().__init__()
        self.tower = tower

    def forward(self, x: Tensor) -> Tensor:
        """Embed normalised images [N, 3, H, W] as tokens [N, 1 + T, d]."""
        if isinstance(self.tower, VisionTransformer):
            return self.tower._embeds(x)
        trunk = self.tower.trunk
        return trunk.norm_pre(trunk._pos_embed(trunk.patch_embed(x)))


def first_norm(tower: Any) -> nn.Module:
    """Return the norm that tokens pass before the first block, an identity if there is none."""
    if isinstance(tower, ModifiedResNet):
        raise FedLoomError("a CLIP with a ResNet: only a tower of blocks has tokens")
    return tower.ln_pre if isinstance(tower, VisionTransformer) else tower.trunk.norm_pre


def patch_embeddings(tower: Any, x: Tensor) -> Tensor:
    """Return the patches [N, T, d] of images [N, 3, H, W] with positions, before the first norm."""
    given = list[Tensor]()
    caught = first_norm(tower).register_forward_pre_hook(lambda _, args: given.append(args[0]))
    try:
        _Embedding(tower)(x)
    finally:
        caught.remove()
    prefixes = 1 if isinstance(tower, VisionTransformer) else tower.trunk.num_prefix_tokens
    return given[0][:, prefixes:]


def shape(tower: Any) -> tuple[nn.ModuleList, int, int]:
    """Return the blocks of a tower, the width d of its T tokens, and T d.

    A ResNet has no blocks; its tokens are those of its last feature map.
    """
    if isinstance(tower, VisionTransformer):
        embedding = tower.positional_embedding  # [T, d]
        return tower.transformer.resblocks, embedding.shape[1], embedding.numel()
    if isinstance(tower, ModifiedResNet):
        return nn.ModuleList(), tower.output_dim, tower.attnpool.positional_embedding.numel()
    trunk = tower.trunk
    tokens = trunk.num_prefix_tokens + trunk.patch_embed.num_patches
    return trunk.blocks, trunk.embed_dim, tokens * trunk.embed_dim


def trained_tokens(
    tower: Any,
    x: Tensor,
    weights: Weights,
    inserts: Inserts | None,
    gradient_checkpointing: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return what `tokens` does, for K clients with separate weights and inserts.

    Images are [K, B, 3, H, W]; weights [K, ...] go by name within the tower. Prompts that an insert
    put behind the class token are left out.
    """
    if isinstance(tower, ModifiedResNet):
        raise FedLoomError("a CLIP with a ResNet: only a tower of blocks can be trained inside")
    own = isinstance(tower, VisionTransformer)
    prefix = "transformer.resblocks." if own else "trunk.blocks."
    behind = ("ln_post.", "proj") if own else ("trunk.norm.", "trunk.fc_norm.", "head.")
    first = {f"tower.{k}": v for k, v in weights.items() if not k.startswith((prefix, *behind))}
    embedding = _Embedding(tower)
    if first:
        x = per_client(embedding, x, first)  # [K, B, 1 + T, d]
    else:
        with torch.no_grad():
            x = embedding(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    length = x.shape[2]
    blocks, *_ = shape(tower)
    x = run_blocks(blocks, x, below(weights, prefix), inserts, None, gradient_checkpointing)
    steps = ("ln_post",) if own else ("trunk.norm", "trunk.fc_norm", "trunk.head", "head")
    for name in steps:
        x = layer(tower.get_submodule(name), x, below(weights, f"{name}."))
    if own and tower.proj is not None:
        projection = weights.get("proj", tower.proj)  # [d, d_joint] or [K, d, d_joint]
        x = x @ (projection.unsqueeze(1) if projection.dim() == 3 else projection)
    prefixes = 1 if own else tower.trunk.num_prefix_tokens
    return x[:, :, 0], x[:, :, prefixes - length :]


def _attention_pool(pool: AttentionPool2d, x: Tensor) -> Tensor:
    """Return all outputs [N, 1 + T, d_joint] of the pool, of a feature map [N, d, H, W].

    The pool itself returns only the first.
    """
    x = x.flatten(2).permute(2, 0, 1)  # [T, N, d]
    x = torch.cat([x.mean(0, keepdim=True), x]) + pool.positional_embedding[:, None]
    projections = (pool.q_proj, pool.k_proj, pool.v_proj)
    pooled, _ = F.multi_head_attention_forward(
        *(x, x, x),
        embed_dim_to_check=x.shape[-1],
        num_heads=pool.num_heads,
        q_proj_weight=pool.q_proj.weight,
        k_proj_weight=pool.k_proj.weight,
        v_proj_weight=pool.v_proj.weight,
        in_proj_weight=None,
        in_proj_bias=torch.cat([projection.bias for projection in projections]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=pool.c_proj.weight,
        out_proj_bias=pool.c_proj.bias,
        use_separate_proj_weight=True,
        training=False,
        need_weights=False,
    )
    return pooled.movedim(0, 1)


def check(tower: Any, name: str) -> None:
    """Raise a FedLoomError if the feature of a tower is not its projected class token."""
    if isinstance(tower, ModifiedResNet):
        return
    what = f"backbone {name}: its image tower"
    if isinstance(tower, VisionTransformer):
        pool = tower.pool_type if tower.attn_pool is None else "attention"
    elif isinstance(tower, TimmModel) and isinstance(tower.trunk, TimmViT):
        pool = tower.trunk.global_pool
    else:
        kind = type(getattr(tower, "trunk", tower)).__name__
        raise FedLoomError(f"{what} is a {kind}; read are ViTs and CLIP's own ResNets")
    if pool not in ("tok", "token"):
        raise FedLoomError(f"{what} pools by '{pool}', not by a class token")
