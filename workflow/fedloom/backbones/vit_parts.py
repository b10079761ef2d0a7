"""A ViT of any library, as the parts that FedLoom runs one after the other.

A plugin with a library of backbones returns `ViTParts`. `ViTOfParts` makes a module of them, whose
parts have the names that timm gives them: `blocks`, `norm`, `attn_pool`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.backbones.block_pass import check_part_names, name_parts
from fedloom.backbones.token_order import TokenOrder
from fedloom.common.errors import FedLoomError


class Transform(NamedTuple):
    """How images become the input of a model.

    Attributes:
        size: side of the square in pixels.
        mean: mean of each channel, for values from 0 to 1, or one for all channels.
        std: standard deviation of each channel, or one for all.
        interpolation: how images of other sizes are resized.
        channels: 3 for colour images, 1 for grey ones.
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    channels: int = 3


@dataclass(frozen=True, eq=False)
class ViTParts:
    """The parts of a ViT.

    Attributes:
        embedding: returns the input of the first block, [N, T, d], for normalised images [N,
            channels, H, W]. The class token comes first, then registers, then the patches.
        blocks: the transformer blocks. Each returns tokens [N, T, d] for tokens [N, T, d], and must
            take any number T of them, since methods add prompts.
        norm: the norm of each token that follows the last block.
        patch_size: side of a patch in pixels.
        prefix: how many tokens stand in front of the patches.
        has_class_token: True if the first of these is a class token.
        pool: the feature that heads classify. "token" is the class token, "mean" the mean of the
            patches, both after the norm. A module returns it, [N, d], for all of an image's own
            tokens [N, T, d] after the norm.
        block_parts: the dotted name of each part within a block, by its role (see
            `fedloom.backbones.block_pass.ROLES`). Without them, methods can put prompts between
            blocks, but can neither train a part of a block nor put functions into it.
    """

    embedding: nn.Module
    blocks: Sequence[nn.Module]
    norm: nn.Module
    patch_size: int
    prefix: int = 1
    has_class_token: bool = True
    pool: Literal["token", "mean"] | nn.Module = "token"
    block_parts: Mapping[str, str] = field(default_factory=dict)


class ViTOfParts(nn.Module):
    """A ViT made of parts, with the names that timm gives the parts and facts of a ViT.

    Attributes:
        transform: how images become its input.
        embed_dim: d, the length of a token.
        order: how many tokens an image has, and where they stand.
    """

    def __init__(self, parts: ViTParts, transform: Transform):
        """Join the parts.

        Raises:
            FedLoomError: a part is missing, or gives tensors of other shapes than it must.
        """
        super().__init__()
        check_parts(parts)
        self.embedding = parts.embedding
        self.blocks = nn.ModuleList(parts.blocks)
        self.norm = parts.norm
        self.fc_norm = nn.Identity()

        # what is pooled, by timm's words for it; a module gets all tokens of the image
        self.attn_pool: nn.Module | None = None
        self.pool_include_prefix = True
        if isinstance(parts.pool, nn.Module):
            self.attn_pool = parts.pool
            self.global_pool = "map"
        else:
            self.global_pool = {"token": "token", "mean": "avg"}[parts.pool]

        self.transform = transform
        self.has_class_token = parts.has_class_token
        self.patch_size = parts.patch_size
        name_parts(self.blocks, parts.block_parts)

        tokens = self._tokens_of_an_image()
        self.embed_dim = tokens.shape[-1]
        self.order = TokenOrder(parts.prefix, tokens.shape[-2] - parts.prefix)

    @torch.no_grad()
    def _tokens_of_an_image(self) -> Tensor:
        """Return the tokens [1, T, d] of a black image.

        Raises:
            FedLoomError: the embedding gives no tokens.
        """
        place = next(self.embedding.parameters())
        side = self.transform.size
        shape = (1, self.transform.channels, side, side)
        tokens = self.embedding(torch.zeros(shape, dtype=place.dtype, device=place.device))
        if tokens.dim() != 3 or len(tokens) != 1:
            raise FedLoomError(
                f"the embedding must return tokens [N, T, d] for images {list(shape)}, got "
                f"{list(tokens.shape)}"
            )
        return tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the mean of the patches [N, d] of an image's own tokens [N, T, d]."""
        return tokens[:, self.order.prefix :].mean(1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features [N, d] of normalised images [N, channels, H, W], without prompts."""
        tokens = self.embedding(images)
        for block in self.blocks:
            tokens = block(tokens)
        normed = self.norm(tokens)
        if self.global_pool == "token":
            return normed[:, 0]
        if self.attn_pool is not None:
            return self.attn_pool(normed)
        return self.pool(normed)


def check_parts(parts: ViTParts) -> None:
    """Check that parts are modules, and that their roles have names in every block.

    Raises:
        FedLoomError: they are not; the error begins with the name of the part.
    """
    modules = {"embedding": parts.embedding, "norm": parts.norm}
    modules |= {f"blocks[{number}]": block for number, block in enumerate(parts.blocks)}
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            raise FedLoomError(f"{name} must be a torch module, got {type(module).__name__}")
    if not parts.blocks:
        raise FedLoomError("blocks must hold at least one block, got none")
    if not (isinstance(parts.pool, nn.Module) or parts.pool in ("token", "mean")):
        raise FedLoomError(f"pool must be token, mean or a torch module, got {parts.pool!r}")
    if parts.has_class_token and not parts.prefix:
        raise FedLoomError("prefix must count the class token, got 0; or has_class_token=False")
    if parts.pool == "token" and not parts.has_class_token:
        raise FedLoomError("pool must be mean or a module for a ViT without a class token")
    check_part_names(parts.blocks, parts.block_parts)
