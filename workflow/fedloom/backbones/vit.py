"""A timm ViT, run block by block so that methods can put prompts anywhere, or train its inside.

By default its weights are frozen and shared by all clients. A method may give every client separate
weights, by name (`weights`: full fine-tuning, biases alone, the last blocks), and put functions
into the places of a block (`inserts`: adapters, LoRA, prefixes; see `fedloom.backbones.blocks`).

Shapes: K clients, B batch, T tokens (class token first), P prompts, d width, C classes, M blocks.
"""

import re
from typing import Any

import safetensors.torch
import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

import fedloom.backbones.micro_vit  # noqa: F401  registers micro_vit with timm
from fedloom.backbones.base import Pixels, check_file, loading
from fedloom.backbones.blocks import (
    EVERY,
    Inserts,
    Weights,
    below,
    check_inserts,
    check_weights,
    layer,
    per_client,
    read_block,
    recomputed,
    run_block,
)
from fedloom.common.checkout import resource
from fedloom.common.device import arithmetic
from fedloom.common.errors import FedLoomError, shortened, suggestion
from fedloom.common.memory import training_bytes


class FrozenViT:
    """A ViT in the pieces that methods put together, with frozen weights unless they bring others.

    A forward pass with prompts P at block 1 is
    `logits(blocks(insert(embed(images), P)), head)`, which `forward_prompted` computes. `forward`
    is the same with weights and inserts, which every piece takes as well:

        weights: {name: [K, ...]}, the clients' own values of some or all of `init_weights()`.
        inserts: {block: {place: function}}, see `fedloom.backbones.blocks`.
        read: how many of the first tokens are read behind block M, which then computes no others:
            1 where the class token alone is. Blocks before it compute all tokens.

    Attributes:
        device: where the frozen weights are.
        width: d, the length of a token.
        depth: M, the number of blocks.
        patch_size: side of a patch in pixels (the stride of the stem, if it has one).
        gradient_checkpointing: True if nothing of the inside of a block is kept for the backward
            pass.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        precision: str = "float32",
        gradient_checkpointing: bool = False,
    ):
        """Freeze a ViT that classifies by its class token, to compute in `precision`."""
        name = type(model).__name__
        if not isinstance(model, VisionTransformer):
            raise FedLoomError(f"backbone {name}: not a timm VisionTransformer")
        if model.cls_token is None or model.global_pool != "token":
            raise FedLoomError(f"backbone {name}: has no class token to classify by")
        self.model: VisionTransformer = model.eval().requires_grad_(False).to(device)
        self.device, self.precision = torch.device(device), precision
        self.gradient_checkpointing = gradient_checkpointing
        self._embedding = _Embedding(self.model)
        self.width: int = model.embed_dim
        self.depth = len(model.blocks)
        tokens = model.num_prefix_tokens + model.patch_embed.num_patches
        self.image_floats = tokens * self.width
        self.training_bytes = training_bytes(
            self.image_floats, self.depth, gradient_checkpointing, precision
        )
        patch = model.patch_embed.patch_size
        self.patch_size: int = patch[0] if isinstance(patch, tuple) else patch
        channels = next(p for p in model.patch_embed.parameters() if p.dim() == 4).shape[1]
        size = model.patch_embed.img_size  # not the pretrained config's: image_size may be another
        self.pixels = Pixels(size, channels, resolve_model_data_config(model), device)

    def init_weights(self, pattern: str = "") -> dict[str, Tensor]:
        """Return the pretrained weights by name, as `blocks.0.mlp.fc1.bias`, without client axis.

        Only names that the regular expression `pattern` is found in: `bias$` gives all biases,
        `^blocks\\.1[01]\\.` the last two of twelve blocks.
        """
        named = self.model.named_parameters()
        return {name: value.detach() for name, value in named if re.search(pattern, name)}

    def embed(self, images: Tensor, weights: Weights | None = None) -> Tensor:
        """Embed uint8 images [..., H, W, channels] as the input of block 1 [..., T, d].

        With weights (see the class), images are [K, B, H, W, channels].
        """
        behind = ("blocks.", "norm.", "fc_norm.")
        own = {f"model.{k}": v for k, v in (weights or {}).items() if not k.startswith(behind)}
        with torch.no_grad():
            x = self.pixels(images.flatten(0, -4))
        with arithmetic(self.precision, self.device):
            if own:
                return per_client(self._embedding, x.unflatten(0, images.shape[:2]), own)
            with torch.no_grad():
                return self._embedding(x).unflatten(0, images.shape[:-3])

    def block(
        self,
        j: int,
        tokens: Tensor,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
        read: int | None = None,
    ) -> Tensor:
        """Apply block `j` (from 1) to tokens [..., T, d], with weights or inserts [K, B, T, d].

        See the class; `read` None means all tokens.
        """
        module = self.model.blocks[j - 1]
        own, places = below(weights, f"blocks.{j - 1}."), (inserts or {}).get(j, {})
        wanted = EVERY if read is None or j < self.depth else slice(read)

        def apply(x: Tensor) -> Tensor:
            with arithmetic(self.precision, self.device):
                if own or places:
                    return run_block(module, x, own, places, read=wanted)
                flat, shape = x.flatten(0, -3), x.shape[:-2]
                return read_block(module, flat, wanted).unflatten(0, shape)

        return recomputed(apply, tokens, self.gradient_checkpointing)

    def blocks(
        self,
        tokens: Tensor,
        first: int = 1,
        last: int | None = None,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
        read: int | None = None,
    ) -> Tensor:
        """Apply blocks `first` to `last`, both included (default: all), to tokens [..., T, d]."""
        check_weights(weights, self.model)
        check_inserts(inserts, self.depth)
        for j in range(first, (self.depth if last is None else last) + 1):
            tokens = self.block(j, tokens, weights, inserts, read)
        return tokens

    def logits(self, tokens: Tensor, head: Tensor) -> Tensor:
        """Compute logits [K, B, C] of the last block's output [K, B, T, d] and heads [K, C, d]."""
        return linear(self.pool(tokens), head)

    def forward_prompted(self, images: Tensor, prompts: Tensor, head: Tensor) -> Tensor:
        """Compute logits [K, B, C] with prompts put in at block 1 and carried on (VPT-shallow).

        Images are uint8 [K, B, H, W, channels], heads [K, C, d]; prompts are [K, P, d], or
        [K, B, P, d] where every example has its own.
        """
        return self.logits(self.blocks(insert(self.embed(images), prompts), read=1), head)

    def features(
        self, images: Tensor, weights: Weights | None = None, inserts: Inserts | None = None
    ) -> Tensor:
        """Compute the final-norm class tokens [K, B, d] of uint8 images [K, B, H, W, channels]."""
        tokens = self.embed(images, weights)
        tokens = self.blocks(tokens, weights=weights, inserts=inserts, read=1)
        return self.pool(tokens, weights)

    def forward(
        self,
        images: Tensor,
        head: Tensor,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
    ) -> Tensor:
        """Compute the logits [K, B, C] of a linear head per client [K, C, d] on `features`."""
        return linear(self.features(images, weights, inserts), head)

    def pool(self, tokens: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the final-norm class token [..., d] of the last block's output [..., T, d]."""
        return self.final_norm(tokens[..., 0, :], weights)

    def final_norm(self, tokens: Tensor, weights: Weights | None = None) -> Tensor:
        """Apply the final norm to any tokens [..., d] of the last block's output."""
        for name in ("norm", "fc_norm"):
            tokens = layer(self.model.get_submodule(name), tokens, below(weights, f"{name}."))
        return tokens

    @torch.no_grad()
    def class_tokens(self, images: Tensor) -> Tensor:
        """Compute the unprompted class tokens [..., M + 1, d]: at each block's input, then final.

        `images` are uint8 [..., H, W, channels].
        """
        tokens = self.embed(images)
        seen = []
        for j in range(1, self.depth + 1):
            seen.append(tokens[..., 0, :])
            tokens = self.block(j, tokens, read=1)
        return torch.stack([*seen, self.pool(tokens)], -2)

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Compute the class tokens to cache of uint8 images [N, H, W, channels].

        They are `inputs` [N, M, d] at every block's input, and `final` [N, d].
        """
        if cache != "features":
            raise FedLoomError(f"a ViT has no cache of {cache}")
        tokens = self.class_tokens(images)
        return {"inputs": tokens[:, :-1], "final": tokens[:, -1]}

    def init_prompts(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` prompts [P, d] from U(-v, v) with v = sqrt(6 / (3 patch^2 + d)), as VPT."""
        bound = (6 / (3 * self.patch_size**2 + self.width)) ** 0.5
        draw = torch.rand(count, self.width, generator=generator)
        return (bound * (2 * draw - 1)).to(self.device)

    def init_head(self, num_classes: int) -> Tensor:
        """Return a linear head [C, d] of zeros, without bias, as the papers count it."""
        return torch.zeros(num_classes, self.width, device=self.device)


class _Embedding(nn.Module):
    """What a ViT does before its first block, as a module that weights can be given to."""

    def __init__(self, model: VisionTransformer):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Embed normalised images [N, channels, H, W] as tokens [N, T, d]."""
        model = self.model
        return model.norm_pre(model._pos_embed(model.patch_embed(x)))


def linear(features: Tensor, head: Tensor) -> Tensor:
    """Compute logits [K, B, C] of features [K, B, d] under each client's head [K, C, d]."""
    return features @ head.transpose(-1, -2)


def insert(tokens: Tensor, prompts: Tensor) -> Tensor:
    """Insert prompts behind the class token: tokens [K, B, T, d] become [K, B, T + P, d].

    Prompts are [K, P, d], or [K, B, P, d] where every example has its own.
    """
    if prompts.dim() == 3:
        prompts = prompts.unsqueeze(1).expand(-1, tokens.shape[1], -1, -1)
    return torch.cat([tokens[..., :1, :], prompts, tokens[..., 1:, :]], -2)


def replace(tokens: Tensor, prompts: Tensor) -> Tensor:
    """Replace the P tokens behind the class token by prompts; shapes as in `insert`, T stays."""
    count = prompts.shape[-2]
    return insert(torch.cat([tokens[..., :1, :], tokens[..., 1 + count :, :]], -2), prompts)


def load(spec: dict, device: torch.device | str = "cpu") -> FrozenViT:
    """Build a backbone from an entry of the config's `backbones`, see `base.load`."""
    name, weights = spec["name"], spec["weights"]
    if not timm.is_model(name):
        hint = shortened(suggestion(name.split(".")[0], timm.list_models()))
        raise FedLoomError(f"backbone {name}: timm {timm.__version__} has no such model; {hint}")
    path = None if weights in ("hub", "none") else resource(weights)
    if path:
        check_file(name, path, (".safetensors", ".npz"))
    size = {"img_size": spec["image_size"]} if "image_size" in spec else {}
    with loading(name, weights):
        model: Any = timm.create_model(name, num_classes=0, pretrained=weights == "hub", **size)
        if path and path.suffix == ".npz":  # Google's
            model.load_pretrained(str(path))
        elif path:  # timm's filter resizes position embeddings to the image size
            tensors = checkpoint_filter_fn(safetensors.torch.load_file(path), model)
            model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("head.")})
    return FrozenViT(
        model, device, spec.get("precision", "float32"), spec.get("gradient_checkpointing", False)
    )
