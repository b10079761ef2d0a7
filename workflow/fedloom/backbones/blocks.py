"""A transformer block whose inside can be trained, with an explicit client axis.

As long as a block is frozen, a backbone calls the block of its library. This module computes the
same block step by step. So each client may have weights of its own, and each place of the block may
have a function put into it:

    tokens ->-- "input" --+-- norm -- "q" "k" "v" -- attention -- "proj" -- "attention" --(+)--+
                          +--------------------------------->-----------------------------'     |
           +---------------------------------<--------------------------------------------------+
           +--+-- norm -- "fc1" -- activation -- "fc2" -- "mlp" --(+)--> tokens
              +------------------------->--------------------------'

Such a function is called an insert. It takes what entered the place and what comes out of it, both
with leading axes [K, B, tokens]. What it returns replaces what comes out. Adapters, LoRA, prefixes
and deep prompts are inserts; `fedloom.toolbox` has them.

Often only some tokens of the last block's output are read, such as the class token. `read_block`
then computes only these tokens. The others are used only as keys and values.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedloom.backbones.cast_matrices import with_cast_matrices
from fedloom.backbones.client_layers import (
    Weights,
    apply_layer,
    apply_per_client,
    linear_layer,
    select_weights,
)
from fedloom.backbones.compiled import are_compiled, compile_blocks, compiled
from fedloom.common.errors import FedLoomError

Insert = Callable[[Tensor, Tensor], Tensor]
# number of a block (from 1) -> place -> insert
Inserts = Mapping[int, Mapping[str, Insert]]
# the tokens of a block's output that are read, as an index of the axis T
Read = slice | Tensor
EVERY = slice(None)

PLACES = ("input", "q", "k", "v", "proj", "attention", "fc1", "fc2", "mlp")
# places that every token passes; the other places see only the tokens whose output is read
BEFORE = {"input", "k", "v"}
# a weight belongs to the embedding unless its name begins with one of these
BEHIND = ("blocks.", "norm.", "fc_norm.", "head.", "transformer.", "ln_post.", "proj")

# parts of a block: role, name in timm's Block, name in open_clip's ResidualAttentionBlock ("":
# none)
BLOCK_PARTS = (
    ("norm1", "norm1", "ln_1"),
    ("in_weight", "attn.qkv.weight", "attn.in_proj_weight"),
    ("in_bias", "attn.qkv.bias", "attn.in_proj_bias"),
    ("q_norm", "attn.q_norm", ""),
    ("k_norm", "attn.k_norm", ""),
    ("inner_norm", "attn.norm", ""),
    ("gate", "attn.gate", ""),
    ("proj", "attn.proj", "attn.out_proj"),
    ("scale1", "ls1", "ls_1"),
    ("norm2", "norm2", "ln_2"),
    ("fc1", "mlp.fc1", "mlp.c_fc"),
    ("activation", "mlp.act", "mlp.gelu"),
    ("hidden_norm", "mlp.norm", ""),
    ("fc2", "mlp.fc2", "mlp.c_proj"),
    ("scale2", "ls2", "ls_2"),
)


def _part_names(block: Any) -> dict[str, str]:
    """Return the dotted name of each part of a block, by role.

    It is empty if the block's class is unknown.
    """
    if isinstance(block, Block) and type(block.attn) is Attention and type(block.mlp) is Mlp:
        return {role: name for role, name, _ in BLOCK_PARTS}
    # compare the name of the class, because the import of open_clip takes seconds
    if type(block).__name__ == "ResidualAttentionBlock":
        return {role: name for role, _, name in BLOCK_PARTS if name}
    return {}


def check_inserts(inserts: Inserts | None, depth: int) -> None:
    """Check that inserts name blocks from 1 to `depth`, and places that a block has.

    Raises:
        FedLoomError: a block or a place does not exist.
    """
    for number, places in (inserts or {}).items():
        if not (1 <= number <= depth and places.keys() <= set(PLACES)):
            raise FedLoomError(
                f"inserts must name blocks from 1 to {depth} and the places {', '.join(PLACES)}, "
                f"got block {number} with {', '.join(places)}"
            )


class Embedding(nn.Module):
    """The part of a ViT (of timm or open_clip) before its first block, which embeds images."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens [N, T, d] for normalised images [N, channels, H, W]."""
        if hasattr(self.model, "_embeds"):
            return self.model._embeds(x)
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(x)))

    def embed(self, x: Tensor, shape: Sequence[int], weights: Weights | None) -> Tensor:
        """Return tokens [*shape, T, d] for N images [N, channels, H, W], where N = prod(shape).

        With clients' weights, the shape is (K, B).
        """
        own = {f"model.{k}": v for k, v in (weights or {}).items() if not k.startswith(BEHIND)}
        if own:
            return apply_per_client(self, x.unflatten(0, shape), own)
        return self(x).unflatten(0, shape)


class _BlockPass:
    """The parts of a block, under the weights and the inserts of K clients."""

    def __init__(self, block: Any, weights: Weights, inserts: Mapping[str, Insert]):
        """Take a block; see `run_block`.

        Raises:
            FedLoomError: the block's class is unknown.
        """
        self._block = block
        self._weights = weights
        self._inserts = inserts
        self._names = _part_names(block)
        if not self._names:
            raise FedLoomError(
                f"the inside of a {type(block).__name__} cannot be trained; use a backbone of "
                "timm's Block, with timm's Attention and Mlp, or of open_clip's "
                "ResidualAttentionBlock"
            )

    def apply(self, role: str, x: Tensor) -> Tensor:
        """Apply the part of a role, under the clients' weights; return x if the block lacks it."""
        if role not in self._names:
            return x
        name = self._names[role]
        part = self._block.get_submodule(name)
        return apply_layer(part, x, select_weights(self._weights, f"{name}."))

    def place(self, name: str, given: Tensor, out: Tensor) -> Tensor:
        """Return what goes on after a place: the insert's result, or `out` without an insert."""
        if name not in self._inserts:
            return out
        return self._inserts[name](given, out)

    def project(self, normed: Tensor, read: Read) -> Sequence[Tensor]:
        """Return the queries [K, B, R, d] of the tokens that are read, and all keys and values."""
        # one matrix, [3 d, d] or [K, 3 d, d], and one bias give queries, keys and values
        names = (self._names["in_weight"], self._names["in_bias"])
        weight, bias = (self._weights.get(name, attrgetter(name)(self._block)) for name in names)
        q, k, v = _project(normed, weight, bias, read)
        return (
            self.place("q", normed, q),
            self.place("k", normed, k),
            self.place("v", normed, v),
        )

    def attention(self, qkv: Sequence[Tensor], normed: Tensor, mask: Tensor | None) -> Tensor:
        """Return what the attention adds to the R tokens that are read, [K, B, R, d].

        `normed` [K, B, R, d] are these tokens after the first norm.
        """
        mixed = self._attend(qkv, mask)  # [K, B, R, d]
        if getattr(self._block.attn, "gate", None) is not None:
            mixed = mixed * self.apply("gate", normed).sigmoid()
        out = self.place("proj", mixed, self.apply("proj", mixed))
        return self.place("attention", normed, self.apply("scale1", out))

    def mlp(self, x: Tensor) -> Tensor:
        """Return what the MLP adds to the R tokens that are read, [K, B, R, d]."""
        normed = self.apply("norm2", x)
        hidden = self.place("fc1", normed, self.apply("fc1", normed))  # [K, B, R, h]
        hidden = self.apply("hidden_norm", self.apply("activation", hidden))
        out = self.place("fc2", hidden, self.apply("fc2", hidden))
        return self.place("mlp", normed, self.apply("scale2", out))

    def _attend(self, qkv: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        """Return what R queries [K, B, R, d] read from S keys and values [K, B, S, d]."""
        # split into heads, [K B, heads, tokens, d / heads]
        heads = self._block.attn.num_heads
        shape = qkv[0].shape[:2]
        q, k, v = (x.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv)

        # norms may have clients' weights, which need the client axis in front
        q = self.apply("q_norm", q.unflatten(0, shape)).flatten(0, 1)
        k = self.apply("k_norm", k.unflatten(0, shape)).flatten(0, 1)

        # extend the mask: all queries see the keys that an insert has put in front
        if mask is not None:
            if mask.dim() != 2:
                mask = mask.unflatten(0, (-1, heads))
            mask = mask.to(q.dtype)
            keys_in_front = k.shape[-2] - mask.shape[-1]
            if keys_in_front:
                mask = F.pad(mask, (keys_in_front, 0))

        if q.requires_grad and _bf16_on_cpu(q):
            # here the backward pass of torch's fused attention would take five times as long
            scores = (q * q.shape[-1] ** -0.5) @ k.mT  # [K B, heads, R, S]
            if mask is not None:
                scores = scores + mask
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.apply("inner_norm", mixed.transpose(1, 2).flatten(2).unflatten(0, shape))


def run_block(
    block: Any,
    tokens: Tensor,
    weights: Weights,
    inserts: Mapping[str, Insert],
    mask: Tensor | None = None,
    read: Read = EVERY,
) -> Tensor:
    """Apply a block to tokens [K, B, T, d]; return [K, B, R, d].

    A frozen block without inserts is compiled where `compile_blocks` says so. The arguments are
    those of `_run_block`.
    """
    if not weights:
        block = with_cast_matrices(block, tokens)
    if not weights and not inserts and tokens.requires_grad and are_compiled():
        return compiled(_run_block)(block, tokens, {}, {}, mask, read)
    return _run_block(block, tokens, weights, inserts, mask, read)


def _run_block(
    block: Any,
    tokens: Tensor,
    weights: Weights,
    inserts: Mapping[str, Insert],
    mask: Tensor | None = None,
    read: Read = EVERY,
) -> Tensor:
    """Apply a block to tokens [K, B, T, d]; return [K, B, R, d].

    Args:
        weights: the clients' parameters [K, ...], by name within the block. The block's own are
            used for all others.
        inserts: functions by place.
        mask: an additive mask of the attention, [T, T] or [K B heads, T, T]. If an insert puts keys
            in front of the others, all tokens see these keys.
        read: the R tokens whose output is computed, as an index of the tokens after the place
            "input".
    """
    # an insert may mix tokens, so one at a later place must get all of them
    if not inserts.keys() <= BEFORE and read is not EVERY:
        return _run_block(block, tokens, weights, inserts, mask)[..., read, :]

    block_pass = _BlockPass(block, weights, inserts)

    # an insert at the place "input" may change T, the number of tokens
    x = block_pass.place("input", tokens, tokens)  # [K, B, T, d]
    normed = block_pass.apply("norm1", x)
    qkv = block_pass.project(normed, read)

    # from here on, compute only the R tokens that are read
    if read is not EVERY:
        x = x[..., read, :]  # [K, B, R, d]
        normed = normed[..., read, :]
        if mask is not None:
            mask = mask[..., read, :]

    # the attention and the MLP, each with its skip connection
    x = x + block_pass.attention(qkv, normed, mask)
    return x + block_pass.mlp(x)


def read_block(block: nn.Module, tokens: Tensor, read: Read, mask: Tensor | None = None) -> Tensor:
    """Return the output [N, R, d] of a frozen block for the R tokens of [N, T, d] that are read.

    The library's block is called if it must be, because its inside is unknown, or if it is the
    faster one.
    """
    by_library = read is EVERY and _library_is_faster(tokens) and not are_compiled()
    if by_library or not _part_names(block):
        if mask is None:
            return block(tokens)[:, read]
        return block(tokens, attn_mask=mask)[:, read]
    return run_block(block, tokens[None], {}, {}, mask, read)[0]


def _library_is_faster(tokens: Tensor) -> bool:
    """Return True in float32 on a CPU, where both blocks compute the same, bit for bit.

    In bfloat16 on a CPU, open_clip's block takes ten times as long as `run_block`. On a GPU, the
    backward passes of both libraries' attention copy the gradients of queries, keys and values once
    more, since their forward passes move the axis of the three to the front.
    """
    return not tokens.is_cuda and not _bf16_on_cpu(tokens)


def run_blocks(
    blocks: nn.ModuleList,
    tokens: Tensor,
    weights: Weights,
    inserts: Inserts | None = None,
    mask: Tensor | None = None,
    gradient_checkpointing: bool = False,
    read: Read = EVERY,
) -> Tensor:
    """Apply all blocks to tokens [K, B, T, d]; return the R tokens that are read, [K, B, R, d].

    Args:
        weights: the clients' parameters [K, ...], by names such as `0.attn.proj.bias`.
        inserts: functions by block (from 1) and place.
        mask: see `run_block`.
        gradient_checkpointing: True computes the inside of each block again in the backward pass.
        read: the tokens of the last block's output that are read, as an index of the axis T.
    """
    check_inserts(inserts, len(blocks))
    for number, block in enumerate(blocks, start=1):
        own = select_weights(weights, f"{number - 1}.")
        places = (inserts or {}).get(number, {})

        # the block that follows reads all tokens; only the output of the last block is read in part
        wanted = EVERY
        if number == len(blocks):
            wanted = read

        step = partial(run_block, block, weights=own, inserts=places, mask=mask, read=wanted)
        tokens = run_with_checkpointing(step, tokens, gradient_checkpointing)
    return tokens


def _project(normed: Tensor, weight: Tensor, bias: Tensor | None, read: Read) -> Sequence[Tensor]:
    """Return queries [K, B, R, d] of the tokens that are read, and keys and values [K, B, T, d]."""
    if read is EVERY:
        return linear_layer(normed, weight, bias).chunk(3, -1)

    # split the rows of the matrix: first those of queries, then those of keys and values
    rows = [weight.shape[-2] // 3, weight.shape[-2] // 3 * 2]
    q_weight, kv_weight = weight.split(rows, -2)
    q_bias = None
    kv_bias = None
    if bias is not None:
        q_bias, kv_bias = bias.split(rows, -1)

    kv = linear_layer(normed, kv_weight, kv_bias).chunk(2, -1)
    return linear_layer(normed[..., read, :], q_weight, q_bias), *kv


def _bf16_on_cpu(x: Tensor) -> bool:
    """Return True if operations on x compute in bfloat16 on a CPU."""
    return not x.is_cuda and torch.is_autocast_enabled("cpu")


def run_with_checkpointing(
    function: Callable[[Tensor], Tensor], tokens: Tensor, wanted: bool
) -> Tensor:
    """Return function(tokens); if `wanted`, the backward pass computes its inside again.

    This is gradient checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
    2016). The results are equal bit for bit, because nothing in a block is random.
    """
    if not wanted or not torch.is_grad_enabled():
        return function(tokens)

    # the backward pass may run in another thread, to which the context does not reach
    wanted_compiled = are_compiled()

    def in_same_context(tokens: Tensor) -> Tensor:
        with compile_blocks(wanted_compiled):
            return function(tokens)

    # do not keep the random state: each block would wait for its copy from the GPU
    result: Any = checkpoint(in_same_context, tokens, use_reentrant=False, preserve_rng_state=False)
    return result
