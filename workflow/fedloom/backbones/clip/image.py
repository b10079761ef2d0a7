"""The image towers of open_clip models, which give a class token and patch tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from open_clip.modified_resnet import AttentionPool2d, ModifiedResNet
from open_clip.transformer import VisionTransformer
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn

from fedloom.backbones import blocks
from fedloom.backbones.blocks import Inserts
from fedloom.backbones.client_layers import Weights, apply_layer, select_weights
from fedloom.common.errors import FedLoomError


class ImageTower:
    """An image tower: a ViT of open_clip or timm, or a ResNet of CLIP, which has no blocks.

    The last step of a tower (norm and projection, or attention pool) is applied to all tokens. So
    patches, too, are mapped into the joint space of images and texts, where FedOTP needs them.

    Attributes:
        width: d of the T tokens, one of which is the class token. For a ResNet it is d_joint.
        image_floats: T d. The tokens of a ResNet are the places of its last feature map.
    """

    def __init__(self, tower: Any, name: str):
        """Take the image tower of the model `name`.

        Raises:
            FedLoomError: the tower's feature of an image is not its class token.
        """
        self._tower = tower
        trunk = getattr(tower, "trunk", tower)
        self._embedding = blocks.Embedding(trunk)

        # where each kind of tower has its parts
        self._prefixes = 1
        self.blocks: Any = nn.ModuleList()
        pool = "token"
        if isinstance(tower, ModifiedResNet):
            # a ResNet of CLIP; its class token is the mean over all places
            self.width: int = tower.output_dim
            self.image_floats: int = tower.attnpool.positional_embedding.numel()
        elif isinstance(tower, VisionTransformer):
            # a ViT of open_clip
            pool = "attention"
            if tower.attn_pool is None:
                pool = tower.pool_type
            self.blocks = tower.transformer.resblocks
            self._first_norm = tower.ln_pre
            self._inside = ""
            self._blocks_at = "transformer.resblocks."
            self._last = ("ln_post",)
            self.width = tower.positional_embedding.shape[1]
            self.image_floats = tower.positional_embedding.numel()
        elif isinstance(trunk, TimmViT):
            # a ViT of timm inside a tower of open_clip
            pool = trunk.global_pool
            self.blocks = trunk.blocks
            self._first_norm = trunk.norm_pre
            self._prefixes = trunk.num_prefix_tokens
            self._inside = "trunk."
            self._blocks_at = "trunk.blocks."
            self._last = ("trunk.norm", "trunk.fc_norm", "trunk.head", "head")
            self.width = trunk.embed_dim
            self.image_floats = (self._prefixes + trunk.patch_embed.num_patches) * self.width
        else:
            pool = "?"

        if pool not in ("tok", "token"):
            raise FedLoomError(
                f"backbone {name}: the image tower must be a ViT that is read at its class token, "
                f"or a ResNet of CLIP, got a {type(trunk).__name__} that pools by '{pool}'; choose "
                "another name (backbones.<label>.name)"
            )

    def __call__(
        self, x: Tensor, weights: Weights, inserts: Inserts | None, checkpointing: bool
    ) -> tuple[Tensor, Tensor]:
        """Return class tokens [..., d_joint] and T patch tokens [..., T, d_joint] of images.

        Patch tokens do not include prompts that an insert put behind the class token.

        Args:
            x: normalised images [..., 3, H, W]; with weights or inserts [K, B, 3, H, W].
            weights: the clients' parameters [K, ...], by name within the tower.
            inserts: functions by block and place.
            checkpointing: True computes the inside of blocks again in the backward pass.
        """
        # a ResNet takes no weights and inserts; `first_norm` raises the error about them
        tower = self._tower
        if isinstance(tower, ModifiedResNet):
            if weights or inserts:
                self.first_norm()
            maps = tower.stem(x.flatten(0, -4))
            maps = tower.layer4(tower.layer3(tower.layer2(tower.layer1(maps))))
            x = _attention_pool(tower.attnpool, maps).unflatten(0, x.shape[:-3])
            return x[..., 0, :], x[..., 1:, :]

        # a ViT: compute its tokens
        x = self._embedding.embed(
            x.flatten(0, -4), x.shape[:-3], select_weights(weights, self._inside)
        )
        patches = x.shape[-2] - self._prefixes
        if weights or inserts:
            own = select_weights(weights, self._blocks_at)
            x = blocks.run_blocks(self.blocks, x, own, inserts, None, checkpointing)
        else:
            shape = x.shape[:-2]
            x = x.flatten(0, -3)
            for block in self.blocks:
                x = blocks.read_block(block, x, blocks.EVERY)
            x = x.unflatten(0, shape)

        # apply the norms and the projection to all tokens
        for name in self._last:
            x = apply_layer(tower.get_submodule(name), x, select_weights(weights, f"{name}."))
        if getattr(tower, "proj", None) is not None:
            projection = weights.get("proj", tower.proj)  # [d, d_joint] or [K, d, d_joint]
            if projection.dim() == 3:
                projection = projection.unsqueeze(1)
            x = x @ projection
        return x[..., 0, :], x[..., -patches:, :]

    def first_norm(self) -> nn.Module:
        """Return the norm before the first block; it is an identity if the ViT has none.

        Raises:
            FedLoomError: the tower is a ResNet.
        """
        if not self.blocks:
            raise FedLoomError(
                "the image tower must have transformer blocks, got a ResNet, which has no tokens "
                "and is not trained; choose a CLIP with a ViT"
            )
        return self._first_norm

    def patch_embeddings(self, x: Tensor) -> Tensor:
        """Return the patch tokens [N, T, d] of images [N, 3, H, W] as they enter the first norm."""
        entering = list[Tensor]()
        norm = self.first_norm()
        with norm.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0])):
            self._embedding(x)
        return entering[0][:, self._prefixes :]


def _attention_pool(pool: AttentionPool2d, x: Tensor) -> Tensor:
    """Return all outputs [N, 1 + T, d_joint] of CLIP's attention pool, not only the first.

    The feature maps are [N, d, H, W], with T = H W.
    """
    # put the mean over all places in front, where a ViT has its class token
    x = x.flatten(2).permute(2, 0, 1)  # [T, N, d]
    x = torch.cat([x.mean(0, keepdim=True), x]) + pool.positional_embedding[:, None]

    # attention between queries, keys and values [N, heads, 1 + T, d / heads]
    q, k, v = (
        project(x).unflatten(-1, (pool.num_heads, -1)).permute(1, 2, 0, 3)
        for project in (pool.q_proj, pool.k_proj, pool.v_proj)
    )
    mixed = F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3)
    return pool.c_proj(mixed.flatten(2)).movedim(0, 1)
