"""A ViT of timm or of a plugin, run block by block.

Methods can put in prompts anywhere, and can train its inside. By default its weights are frozen,
and all clients share them. A method may change the ViT in two ways:

1. It gives every client weights of its own, by name: all of them (full fine-tuning), only biases,
   or the last blocks.
2. It puts functions into the places of a block: adapters, LoRA or prefixes (see
   `fedloom.backbones.blocks`).
"""

from typing import Any, Literal

import safetensors.torch
import timm
import torch
from timm.models import eva, vision_transformer
from timm.models.eva import Eva
from torch import Tensor, nn

import fedloom.backbones.micro_vit  # noqa: F401  registers micro_vit with timm
from fedloom.backbones import blocks
from fedloom.backbones.backbone import (
    Device,
    HeadedBackbone,
    Pixels,
    check_model,
    fixed_seed,
    loading,
    preprocessing,
)
from fedloom.backbones.blocks import Inserts
from fedloom.backbones.client_layers import (
    Weights,
    apply_layer,
    check_weights,
    select_weights,
)
from fedloom.backbones.saved_floats import saved_floats
from fedloom.backbones.timm_vit import (
    check_type,
    facts_of,
    pool_tokens,
    rotary_positions,
)
from fedloom.backbones.token_order import EVERY
from fedloom.backbones.weights import (
    check_finite,
    checked_weights_file,
    load_tensors,
    without_prefix,
)
from fedloom.common.errors import FedLoomError
from fedloom.common.initial_values import init_uniform
from fedloom.common.json_types import JsonDict
from fedloom.config.settings import compute_settings
from fedloom.machine.device import arithmetic
from fedloom.machine.memory import training_bytes

# which tokens of the last block's output are read: a number of the first ones, those that `pool`
# needs ("pooled"), or all (None)
ReadTokens = int | Literal["pooled"] | None


class FrozenViT(HeadedBackbone):
    """The pieces of a ViT, from which methods build their forward pass.

    For example, `logits(blocks(insert(embed(images), P)), head)` is the forward pass with prompts P
    at block 1, which `forward_prompted` computes. The weights are frozen, unless a method gives
    each client weights. Most pieces take these arguments:

    - `weights` {name: [K, ...]}: the clients' values of some or all weights of `init_weights()`.
    - `inserts` {block: {place: function}}: see `fedloom.backbones.blocks`.
    - `read`: what is read of block M's output: "pooled" for what `pool` needs, such as the class
      token; a number for so many of the first tokens; or None for all tokens. In most ViTs, no
      others are computed.

    A ViT without a class token pools its patches. The mean of the patches then also stands for the
    class token wherever frozen class tokens are cached.

    Attributes:
        width: d, the length of a token.
        depth: M, the number of blocks.
        patch_size: side of a patch in pixels (the stride of the stem, if it has one).
        has_class_token: False if there is no class token.
        opens_blocks: True if methods can train parts of the blocks, or put functions into them.
        order: how many tokens an image has, and where they stand.
        saved_floats: how many numbers training keeps of a block for the backward pass, in float32,
            per token and feature.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device = "cpu",
        precision: str = "float32",
        gradient_checkpointing: bool = False,
        compile_setting: bool | Literal["auto"] = False,
        spec: JsonDict | None = None,
    ):
        """Freeze a ViT, with arithmetic in `precision`.

        Images are normalised as the model's usual weights need, or as `spec` says, an entry of the
        config's `backbones`.

        Raises:
            FedLoomError: the model is no ViT that can be run block by block.
        """
        check_type(model, (spec or {}).get("name", type(model).__name__))
        super().__init__(model, device, precision, gradient_checkpointing, compile_setting)

        # sizes
        vit = self.model
        facts = facts_of(vit)
        self._embedding = blocks.Embedding(vit)
        self.width = vit.embed_dim
        self.depth = len(vit.blocks)
        self.has_class_token = facts.has_class_token
        self.opens_blocks = all(map(blocks.is_open, vit.blocks))
        self.order = facts.order
        self.image_floats = self.order.own_count * self.width
        self.saved_floats = saved_floats(vit.blocks[0], self.width, facts.has_rotary)
        self.training_bytes = training_bytes(
            self.image_floats,
            self.depth,
            gradient_checkpointing,
            precision,
            self.saved_floats,
        )
        self.patch_size = facts.patch_size

        # how images are converted
        normal = facts.preprocessing
        if spec:
            normal = preprocessing(spec, normal, facts.channels)
        self.pixels = Pixels(facts.image_size, facts.channels, normal, device)

        # rotary positions have no place in the clients' weights
        self._rotary = rotary_positions(vit, self.order, facts.channels, self.device)
        names = (name for name, _ in vit.named_parameters())
        self._trainable = tuple(name for name in names if not name.startswith("rope."))

    def embed(self, images: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the input of block 1, [..., T, d], for uint8 images [..., H, W, channels].

        With weights (see the class), images are [K, B, H, W, channels].
        """
        x = self.pixels(images.flatten(0, -4))
        with arithmetic(self.precision, self.device):
            return self._embedding.embed(x, images.shape[:-3], weights)

    def block(
        self,
        j: int,
        tokens: Tensor,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
        read: ReadTokens = None,
    ) -> Tensor:
        """Apply block `j` (from 1) to tokens [..., T, d].

        With weights or inserts (see the class), tokens are [K, B, T, d].
        """
        module = self.model.blocks[j - 1]
        own = select_weights(weights, f"blocks.{j - 1}.")
        places = (inserts or {}).get(j, {})

        rotary = self._rotary[j - 1]

        # the block that follows reads all tokens; only the output of the last block is read in part
        wanted = EVERY
        if j == self.depth:
            wanted = self._wanted(read)

        def apply(x: Tensor) -> Tensor:
            with arithmetic(self.precision, self.device):
                if own or places:
                    return blocks.run_block(module, x, own, places, read=wanted, rotary=rotary)
                flat = x.flatten(0, -3)
                shape = x.shape[:-2]
                return blocks.read_block(module, flat, wanted, rotary=rotary).unflatten(0, shape)

        return blocks.run_with_checkpointing(apply, tokens, self.gradient_checkpointing)

    def _wanted(self, read: ReadTokens) -> slice:
        """Return the tokens of the last block's output that are computed."""
        if isinstance(read, int):
            return slice(read)
        if read == "pooled" and self.model.global_pool == "token":
            return slice(1)
        return EVERY

    def blocks(
        self,
        tokens: Tensor,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
        read: ReadTokens = None,
    ) -> Tensor:
        """Apply all blocks to tokens [..., T, d]; the arguments are those of the class."""
        check_weights(weights, self.model)
        blocks.check_inserts(inserts, self.depth)
        for j in range(1, self.depth + 1):
            tokens = self.block(j, tokens, weights, inserts, read)
        return tokens

    def logits(self, tokens: Tensor, head: Tensor) -> Tensor:
        """Return logits [K, B, C] for the last block's output [K, B, T, d] and heads [K, C, d]."""
        return linear(self.pool(tokens), head)

    def forward_prompted(self, images: Tensor, prompts: Tensor, head: Tensor) -> Tensor:
        """Return logits [K, B, C] with prompts that are inserted at block 1 (VPT-shallow).

        Args:
            images: uint8 [K, B, H, W, channels].
            prompts: [K, P, d] or [K, B, P, d], see `insert`.
            head: [K, C, d].
        """
        return self.logits(self.blocks(insert(self.embed(images), prompts), read="pooled"), head)

    def features(
        self, images: Tensor, weights: Weights | None = None, inserts: Inserts | None = None
    ) -> Tensor:
        """Return the features that heads classify, [K, B, d] (see `pool`).

        Images are uint8 [K, B, H, W, channels]. For `weights` and `inserts` see the class.
        """
        tokens = self.embed(images, weights)
        return self.pool(
            self.blocks(tokens, weights=weights, inserts=inserts, read="pooled"), weights
        )

    def forward(
        self,
        images: Tensor,
        head: Tensor,
        weights: Weights | None = None,
        inserts: Inserts | None = None,
    ) -> Tensor:
        """Return logits [K, B, C] of each client's linear head [K, C, d] on `features`."""
        return linear(self.features(images, weights, inserts), head)

    def pool(self, tokens: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the feature [..., d] that heads classify, from the last block's output.

        It is the class token after the final norm, or what else the ViT pools from its own tokens:
        the mean of its patches (global average pooling), or an attention over them. Prompts are no
        part of that.

        Args:
            tokens: [..., T, d], or what is left of them with `read="pooled"`; with weights [K, B,
                T, d].
        """
        if self.model.global_pool == "token":
            return self.final_norm(tokens[..., 0, :], weights)

        normed = self._final_layer("norm", self.order.without_prompts(tokens), weights)
        own = select_weights(weights, "attn_pool.")
        with arithmetic(self.precision, self.device):
            pooled = pool_tokens(self.model, self.order, normed, own)
        # an attention that pools computes in the backbone's precision; heads do not
        return self._final_layer("fc_norm", pooled.to(normed.dtype), weights)

    def final_norm(self, tokens: Tensor, weights: Weights | None = None) -> Tensor:
        """Return tokens [..., d] of the last block's output, after the final norm."""
        for name in ("norm", "fc_norm"):
            tokens = self._final_layer(name, tokens, weights)
        return tokens

    def _final_layer(self, name: str, x: Tensor, weights: Weights | None) -> Tensor:
        """Apply a norm that follows the last block, under the clients' weights."""
        return apply_layer(self.model.get_submodule(name), x, select_weights(weights, f"{name}."))

    def _class_token(self, tokens: Tensor) -> Tensor:
        """Return the class token [..., d] of [..., T, d]; without one, the mean of the patches."""
        if self.has_class_token:
            return tokens[..., 0, :]
        return tokens[..., self.order.prefix :, :].mean(-2)

    @torch.no_grad()
    def class_tokens(self, images: Tensor) -> Tensor:
        """Return class tokens [..., M + 1, d], without prompts in the input.

        They are the class token at the input of each block, and the final feature (see `pool`).
        """
        tokens = self.embed(images)
        seen = []
        for j in range(1, self.depth + 1):
            seen.append(self._class_token(tokens))
            tokens = self.block(j, tokens, read="pooled")
        return torch.stack([*seen, self.pool(tokens)], -2)

    def compute_cache(self, images: Tensor, cache: str) -> dict[str, Tensor]:
        """Return class tokens: `inputs` [N, M, d] at each block's input, and `final` [N, d]."""
        tokens = self.class_tokens(images)
        return {"inputs": tokens[:, :-1], "final": tokens[:, -1]}

    def init_prompts(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` prompts [P, d] from U(-v, v), v = sqrt(6 / (3 patch^2 + d)), as VPT does."""
        bound = (6 / (3 * self.patch_size**2 + self.width)) ** 0.5
        return init_uniform(bound, count, self.width, generator=generator, device=self.device)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b [K, ..., o] for x [K, ..., i], with each client's W [K, o, i] and b [K, o].

    W and b may have more axes after the first, which x then has too. Here the bias is added to the
    product. `client_layers.linear_layer`, for layers of a backbone, computes both at once as
    torch's layer does, and so rounds differently.
    """
    # make one axis of all axes between the first and the last
    if weight.dim() == 3 and x.dim() > 3:
        return linear(x.flatten(1, -2), weight, bias).unflatten(1, x.shape[1:-1])

    product = x @ weight.transpose(-1, -2)
    if bias is None:
        return product
    return product + bias.unsqueeze(-2)


def insert(tokens: Tensor, prompts: Tensor) -> Tensor:
    """Insert prompts behind the first token: tokens [K, B, T, d] become [K, B, T + P, d].

    Prompts are [K, P, d], or [K, B, P, d] if every example has its own.
    """
    if prompts.dim() == 3:
        prompts = prompts.unsqueeze(1).expand(-1, tokens.shape[1], -1, -1)
    return torch.cat([tokens[..., :1, :], prompts, tokens[..., 1:, :]], -2)


def replace(tokens: Tensor, prompts: Tensor) -> Tensor:
    """Replace the P tokens behind the first token by prompts; T stays the same.

    Shapes are those of `insert`.
    """
    count = prompts.shape[-2]
    return insert(torch.cat([tokens[..., :1, :], tokens[..., 1 + count :, :]], -2), prompts)


def load(spec: dict, device: Device = "cpu") -> FrozenViT:
    """Return a ViT for an entry of the config's `backbones` (see `backbone.load_backbone`)."""
    name = spec["name"]
    weights = spec["weights"]
    check_model(name.split(".")[0], timm.list_models(), f"timm {timm.__version__}")

    # a file, the hub's weights, or none
    path = None
    if weights not in ("hub", "none"):
        path = checked_weights_file(name, weights, (".safetensors", ".npz"))

    # make the model, with the entry's image size if it has one
    size: dict[str, Any] = {}
    if "image_size" in spec:
        size["img_size"] = spec["image_size"]
    with loading(name, weights), fixed_seed():
        model: Any = timm.create_model(name, num_classes=0, pretrained=weights == "hub", **size)
        if path and path.suffix == ".npz":
            # a file in the format of Google, which timm reads
            if isinstance(model, Eva):
                raise FedLoomError(
                    f"backbone {name}: weights must be a .safetensors file, got '{path}'; timm "
                    "reads .npz files only for a VisionTransformer"
                )
            model.load_pretrained(str(path))
        elif path:
            # these functions of timm resize position embeddings to the image size
            convert: Any = vision_transformer.checkpoint_filter_fn
            if isinstance(model, Eva):
                convert = eva.checkpoint_filter_fn
            tensors = without_prefix(safetensors.torch.load_file(path), model.state_dict())
            load_tensors(model, convert(tensors, model), name, path)
    if weights != "none":
        check_finite(model, name, weights)

    return FrozenViT(model, device, *compute_settings(spec), spec)
