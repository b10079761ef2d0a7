"""A ViT of any library, as the parts that FedLoom runs one after the other.

A plugin with a library of backbones returns `ViTParts`. `ViTOfParts` makes a module of them, whose
parts have the names that timm gives them: `blocks`, `norm`, `attn_pool`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from fedloom.backbones.block_pass import check_part_names, name_parts
from fedloom.backbones.token_order import TokenOrder
from fedloom.common.errors import FedLoomError

Interpolation = Literal["bicubic", "bilinear"]


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
    interpolation: Interpolation = "bicubic"
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
        parts = replace(parts, blocks=tuple(parts.blocks))
        check_parts(parts)
        self.embedding = parts.embedding
        self.blocks = nn.ModuleList(parts.blocks)
        self.norm = parts.norm
        self.fc_norm = nn.Identity()
        name_parts(self.blocks, parts.block_parts)

        # what is pooled, by timm's words for it; a module gets all tokens of the image
        self.attn_pool: nn.Module | None = None
        self.pool_include_prefix = True
        if isinstance(parts.pool, nn.Module):
            self.attn_pool = parts.pool
            self.global_pool = "map"
        else:
            self.global_pool = {"token": "token", "mean": "avg"}[parts.pool]

        # the facts; those about tokens are read from the tokens of an image
        self.transform = transform
        self.has_class_token = parts.has_class_token
        self.patch_size = parts.patch_size
        tokens = self._tokens_of_an_image()  # [1, T, d]
        self.embed_dim = tokens.shape[-1]
        patches = tokens.shape[-2] - parts.prefix
        if patches < 1:
            raise FedLoomError(
                f"prefix must leave at least one patch of the {tokens.shape[-2]} tokens that the "
                f"embedding returns, got {parts.prefix}"
            )
        self.order = TokenOrder(parts.prefix, patches)
        self._check_shapes(tokens)

    @torch.no_grad()
    def _tokens_of_an_image(self) -> Tensor:
        """Return the tokens [1, T, d] of a black image.

        Raises:
            FedLoomError: the embedding gives no tokens.
        """
        any_weight = next(self.parameters())
        side = self.transform.size
        shape = (1, self.transform.channels, side, side)
        image = torch.zeros(shape, dtype=any_weight.dtype, device=any_weight.device)
        tokens = self.embedding(image)
        if not isinstance(tokens, Tensor) or tokens.dim() != 3 or len(tokens) != 1:
            raise FedLoomError(
                f"the embedding must return tokens [N, T, d] for images {list(shape)}, got "
                f"{_describe(tokens)}"
            )
        return tokens

    @torch.no_grad()
    def _check_shapes(self, tokens: Tensor) -> None:
        """Check that blocks return tokens, and that what is pooled is one feature of an image.

        Raises:
            FedLoomError: they return something else.
        """
        out = self.blocks[0](tokens)
        if not isinstance(out, Tensor) or out.shape != tokens.shape:
            raise FedLoomError(
                f"a block must return tokens {list(tokens.shape)} for such tokens, got "
                f"{_describe(out)}"
            )
        if self.attn_pool is None:
            return
        pooled = self.attn_pool(self.norm(out))
        wanted = (1, self.embed_dim)
        if not isinstance(pooled, Tensor) or pooled.shape != wanted:
            raise FedLoomError(
                f"pool must return features {list(wanted)} for tokens {list(tokens.shape)}, got "
                f"{_describe(pooled)}"
            )

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


def _describe(result: object) -> str:
    """Return the shape of a tensor, or the type of anything else, as words of an error."""
    if isinstance(result, Tensor):
        return f"the shape {list(result.shape)}"
    return f"a {type(result).__name__}"


def check_transform(transform: Transform, image_size: int | None) -> None:
    """Check how images become the input of a model; `image_size` is the entry's, if it has one.

    Raises:
        FedLoomError: a value is not one that FedLoom can use.
    """
    size, mean, std, interpolation, channels = transform
    if not isinstance(size, int) or size < 1:
        raise FedLoomError(f"size must be an integer of at least 1, got {size!r}")
    if image_size not in (None, size):
        raise FedLoomError(f"size must be the entry's image_size, {image_size}, got {size}")
    if interpolation not in get_args(Interpolation):
        words = " or ".join(get_args(Interpolation))
        raise FedLoomError(f"interpolation must be {words}, got {interpolation!r}")
    if channels not in (1, 3):
        raise FedLoomError(f"channels must be 1 or 3, got {channels!r}")
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise FedLoomError(
                f"{name} must have a number for each of {channels} channels, or one for all, got "
                f"{len(numbers)}"
            )


def check_parts(parts: ViTParts) -> None:
    """Check that parts are modules of their own, and that their roles have names in every block.

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

    # tokens in front of the patches
    if parts.has_class_token and not parts.prefix:
        raise FedLoomError("prefix must count the class token, got 0; or has_class_token=False")
    if parts.pool == "token" and not parts.has_class_token:
        raise FedLoomError("pool must be mean or a module for a ViT without a class token")

    # a part that keeps the whole model would hold the weights of all others, too
    of_blocks = set[int]()
    for block in parts.blocks:
        of_blocks.update(id(weight) for weight in block.parameters())
    for name in ("embedding", "norm", "pool"):
        part = getattr(parts, name)
        if isinstance(part, nn.Module) and any(id(w) in of_blocks for w in part.parameters()):
            raise FedLoomError(
                f"{name} must hold its own weights alone, got also those of a block; keep only "
                "the layers that it needs as its attributes, not the whole model"
            )
    check_part_names(parts.blocks, parts.block_parts)
