"""The image towers of open_clip models, which give features of images, and perhaps of patches."""

from typing import Any

import torch
import torch.nn.functional as F
from open_clip.modified_resnet import AttentionPool2d, ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn

from fedloom.backbones import blocks
from fedloom.backbones.blocks import Inserts
from fedloom.backbones.client_layers import (
    Weights,
    apply_layer,
    apply_per_client,
    select_weights,
)
from fedloom.common.errors import FedLoomError


class ImageTower:
    """An image tower of open_clip that only gives a feature of each image, such as a ConvNeXt.

    Attributes:
        width: d of the T tokens of an image. For a tower without tokens, it is the number of
            channels of the largest feature map, whose places count as tokens.
        image_floats: T d.
        has_patches: True if the tower gives features of T patches in the joint space of images and
            texts, too.
        blocks: the transformer blocks that methods can enter; none if the tower has none.
    """

    width: int
    image_floats: int
    has_patches = False

    def __init__(self, tower: Any):
        """Take the image tower of a model."""
        self._tower = tower
        self._trunk = getattr(tower, "trunk", tower)
        self._kind = type(self._trunk).__name__
        self.blocks: Any = nn.ModuleList()

    def __call__(
        self, x: Tensor, weights: Weights, inserts: Inserts | None, checkpointing: bool
    ) -> tuple[Tensor, Tensor]:
        """Return features [..., d_joint] of images and [..., T, d_joint] of their patches.

        Patches do not include prompts that an insert put behind the first token. There are none
        (T = 0) unless `has_patches`.

        Args:
            x: normalised images [..., 3, H, W]; with weights or inserts [K, B, 3, H, W].
            weights: the clients' parameters [K, ...], by name within the tower.
            inserts: functions by block and place.
            checkpointing: True computes the inside of blocks again in the backward pass.
        """
        # such a tower takes no weights and inserts; `first_norm` raises the error about them
        if weights or inserts:
            self.first_norm()
        final = self._tower(x.flatten(0, -4)).unflatten(0, x.shape[:-3])
        return final, _no_patches(final)

    def first_norm(self) -> nn.Module:
        """Return the norm before the first block; it is an identity if the ViT has none.

        Raises:
            FedLoomError: the tower has no blocks that a method can enter.
        """
        raise FedLoomError(
            f"the image tower must have transformer blocks, got a {self._kind}, which has no "
            "tokens and is not trained; choose a CLIP with a ViT"
        )

    def patch_embeddings(self, x: Tensor) -> Tensor:
        """Return the patch tokens [N, T, d] of images [N, 3, H, W] as they enter the first norm."""
        self.first_norm()
        return x


class MapTower(ImageTower):
    """Any model of timm in a tower of open_clip, such as a ConvNeXt or a FastViT."""

    def __init__(self, tower: TimmModel):
        """Take the tower, whose largest feature map is that of one of its stages."""
        super().__init__(tower)
        height, width = tower.image_size
        largest = max(
            self._trunk.feature_info,
            key=lambda stage: stage["num_chs"] / stage["reduction"] ** 2,
        )
        places = (height // largest["reduction"]) * (width // largest["reduction"])
        self.width = largest["num_chs"]
        self.image_floats = places * self.width


class PooledTower(ImageTower):
    """A ViT of open_clip whose feature is not its class token, as in CLIPA."""

    def __init__(self, tower: VisionTransformer):
        """Take the tower."""
        super().__init__(tower)
        self.width = tower.positional_embedding.shape[1]
        self.image_floats = tower.positional_embedding.numel()


class ResNetTower(ImageTower):
    """A ResNet of CLIP, whose attention pool is applied to all places, and so gives patches.

    The tokens are the places of its last feature map; the class token is the mean over them.
    """

    has_patches = True

    def __init__(self, tower: ModifiedResNet):
        """Take the tower."""
        super().__init__(tower)
        self._kind = "ResNet"
        self.width = tower.output_dim
        self.image_floats = tower.attnpool.positional_embedding.numel()

    def __call__(
        self, x: Tensor, weights: Weights, inserts: Inserts | None, checkpointing: bool
    ) -> tuple[Tensor, Tensor]:
        """Return features of images and of their patches, see `ImageTower.__call__`."""
        if weights or inserts:
            self.first_norm()
        tower = self._tower
        maps = tower.stem(x.flatten(0, -4))
        maps = tower.layer4(tower.layer3(tower.layer2(tower.layer1(maps))))
        x = _attention_pool(tower.attnpool, maps).unflatten(0, x.shape[:-3])
        return x[..., 0, :], x[..., 1:, :]


class ViTTower(ImageTower):
    """A ViT of open_clip or timm that is read at its class token, or by timm's attention pooling.

    With a class token, the last step of a tower (norm and projection) is applied to all tokens. So
    patches, too, are mapped into the joint space of images and texts, where FedOTP needs them. With
    attention pooling, as in SigLIP, one query reads all tokens, prompts included, just as a class
    token would. Then patches have no features in the joint space.
    """

    def __init__(self, tower: Any):
        """Take the tower."""
        super().__init__(tower)
        trunk = self._trunk
        self._embedding = blocks.Embedding(trunk)
        self._prefixes = 1
        self._pool = ""
        if isinstance(tower, VisionTransformer):
            # a ViT of open_clip
            self.blocks = tower.transformer.resblocks
            self._first_norm = tower.ln_pre
            self._inside = ""
            self._blocks_at = "transformer.resblocks."
            self._norms: tuple[str, ...] = ("ln_post",)
            self._last: tuple[str, ...] = ()
            self.width = tower.positional_embedding.shape[1]
            self.image_floats = tower.positional_embedding.numel()
        else:
            # a ViT of timm inside a tower of open_clip
            self.blocks = trunk.blocks
            self._first_norm = trunk.norm_pre
            self._prefixes = trunk.num_prefix_tokens
            self._inside = "trunk."
            self._blocks_at = "trunk.blocks."
            self._norms = ("trunk.norm",)
            self._last = ("trunk.fc_norm", "trunk.head", "head")
            if trunk.attn_pool is not None:
                self._pool = "trunk.attn_pool"
            self.width = trunk.embed_dim
            self.image_floats = (self._prefixes + trunk.patch_embed.num_patches) * self.width
        self.has_patches = not self._pool

    def __call__(
        self, x: Tensor, weights: Weights, inserts: Inserts | None, checkpointing: bool
    ) -> tuple[Tensor, Tensor]:
        """Return features of images and of their patches, see `ImageTower.__call__`."""
        # compute the tokens
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

        # apply the norms and the projection to all tokens, or to what the pooling makes of them
        x = self._apply(self._norms, x, weights)
        if self._pool:
            final = self._apply(self._last, self._pooled(x, weights), weights)
            return final, _no_patches(final)
        x = self._projected(self._apply(self._last, x, weights), weights)
        return x[..., 0, :], x[..., -patches:, :]

    def _apply(self, names: tuple[str, ...], x: Tensor, weights: Weights) -> Tensor:
        """Return x [..., d] after the layers of these names, one after the other."""
        for name in names:
            layer = self._tower.get_submodule(name)
            x = apply_layer(layer, x, select_weights(weights, f"{name}."))
        return x

    def _pooled(self, x: Tensor, weights: Weights) -> Tensor:
        """Return what timm's attention pooling reads from tokens [..., T, d], as [..., d]."""
        pool = self._tower.get_submodule(self._pool)
        own = select_weights(weights, f"{self._pool}.")
        if own:
            return apply_per_client(pool, x, own)
        return pool(x.flatten(0, -3)).unflatten(0, x.shape[:-2])

    def _projected(self, x: Tensor, weights: Weights) -> Tensor:
        """Return x [..., d] in the joint space, if the tower has a matrix that leads there."""
        if getattr(self._tower, "proj", None) is None:
            return x
        projection = weights.get("proj", self._tower.proj)  # [d, d_joint] or [K, d, d_joint]
        if projection.dim() == 3:
            projection = projection.unsqueeze(1)
        return x @ projection

    def first_norm(self) -> nn.Module:
        """Return the norm before the first block; it is an identity if the ViT has none."""
        return self._first_norm

    def patch_embeddings(self, x: Tensor) -> Tensor:
        """Return the patch tokens [N, T, d] of images [N, 3, H, W] as they enter the first norm."""
        entering = list[Tensor]()
        norm = self.first_norm()
        with norm.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0])):
            self._embedding(x)
        return entering[0][:, self._prefixes :]


def image_tower(tower: Any, name: str) -> ImageTower:
    """Return the image tower of the model `name`.

    Raises:
        FedLoomError: the tower does not give one feature of an image.
    """
    if isinstance(tower, ModifiedResNet):
        return ResNetTower(tower)

    # a ViT of open_clip itself
    if isinstance(tower, VisionTransformer) and tower.attn_pool is None:
        if tower.pool_type == "tok":
            return ViTTower(tower)
        if tower.pool_type == "avg":
            return PooledTower(tower)

    # a model of timm; methods can enter a ViT's blocks if the pooling keeps to plain rules
    if isinstance(tower, TimmModel):
        trunk: Any = tower.trunk
        is_vit = isinstance(trunk, TimmViT)
        if is_vit and trunk.global_pool == "token":
            return ViTTower(tower)
        if is_vit and trunk.global_pool == "map" and not trunk.num_prefix_tokens:
            return ViTTower(tower)
        return MapTower(tower)

    raise FedLoomError(
        f"backbone {name}: the image tower must give one feature of an image, got a "
        f"{type(tower).__name__} that pools in another way; choose another name "
        "(backbones.<label>.name)"
    )


def _no_patches(final: Tensor) -> Tensor:
    """Return features [..., 0, d_joint] of no patches beside those of images [..., d_joint]."""
    return final.unsqueeze(-2)[..., :0, :]


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
