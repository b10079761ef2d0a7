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
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedloom.backbones import eva_blocks
from fedloom.backbones.block_pass import (
    BlockPass,
    Insert,
    is_bf16_on_cpu,
    is_of_plugin,
    part_names,
)
from fedloom.backbones.cast_matrices import with_cast_matrices
from fedloom.backbones.client_layers import Weights, apply_per_client, select_weights
from fedloom.backbones.compiled import are_compiled, compile_blocks, compiled
from fedloom.backbones.token_order import EVERY, Read, Rotary
from fedloom.backbones.vit_parts import ViTOfParts
from fedloom.common.errors import FedLoomError

# number of a block (from 1) -> place -> insert
Inserts = Mapping[int, Mapping[str, Insert]]

PLACES = ("input", "q", "k", "v", "proj", "attention", "fc1", "fc2", "mlp")
# places that every token passes; the other places see only the tokens whose output is read
BEFORE = {"input", "k", "v"}
# a weight belongs to the embedding unless its name begins with one of these
BEHIND = (
    "blocks.", "norm.", "attn_pool.", "fc_norm.", "head.", "transformer.", "ln_post.", "proj",
)  # fmt: skip


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
    """The part of any ViT before its first block, which embeds images."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens [N, T, d] for normalised images [N, channels, H, W]."""
        if isinstance(self.model, ViTOfParts):
            return self.model.embedding(x)
        if hasattr(self.model, "_embeds"):
            return self.model._embeds(x)
        tokens = self.model._pos_embed(self.model.patch_embed(x))
        if isinstance(tokens, tuple):
            # the second item are rotary positions, which belong to the blocks
            tokens = tokens[0]
        return self.model.norm_pre(tokens)

    def embed(self, x: Tensor, shape: Sequence[int], weights: Weights | None) -> Tensor:
        """Return tokens [*shape, T, d] for N images [N, channels, H, W], where N = prod(shape).

        With clients' weights, the shape is (K, B).
        """
        own = {f"model.{k}": v for k, v in (weights or {}).items() if not k.startswith(BEHIND)}
        if own:
            return apply_per_client(self, x.unflatten(0, shape), own)
        return self(x).unflatten(0, shape)


def run_block(
    block: Any,
    tokens: Tensor,
    weights: Weights,
    inserts: Mapping[str, Insert],
    mask: Tensor | None = None,
    read: Read = EVERY,
    rotary: Rotary | None = None,
) -> Tensor:
    """Apply a block to tokens [K, B, T, d]; return [K, B, R, d].

    A frozen block without inserts is compiled where `compile_blocks` says so. The arguments are
    those of `_run_block`.
    """
    if not weights:
        block = with_cast_matrices(block, tokens)
    if not weights and not inserts and tokens.requires_grad and are_compiled():
        return compiled(_run_block)(block, tokens, {}, {}, mask, read, rotary)
    return _run_block(block, tokens, weights, inserts, mask, read, rotary)


def _run_block(
    block: Any,
    tokens: Tensor,
    weights: Weights,
    inserts: Mapping[str, Insert],
    mask: Tensor | None = None,
    read: Read = EVERY,
    rotary: Rotary | None = None,
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
        rotary: rotary positions, if the block has them.

    Raises:
        FedLoomError: the block's class is unknown.
    """
    # an insert may mix tokens, so one at a later place must get all of them
    if not inserts.keys() <= BEFORE and read is not EVERY:
        every = _run_block(block, tokens, weights, inserts, mask, rotary=rotary)
        return every[..., read, :]

    block_pass = _block_pass(block, weights, inserts, rotary)

    # an insert at the place "input" may change T, the number of tokens
    x = block_pass.place("input", tokens, tokens)  # [K, B, T, d]
    count = x.shape[-2]
    normed = block_pass.apply("norm1", x)
    qkv = block_pass.project(normed, read)

    # from here on, compute only the R tokens that are read
    if read is not EVERY:
        x = x[..., read, :]  # [K, B, R, d]
        normed = normed[..., read, :]
        if mask is not None:
            mask = mask[..., read, :]

    # the attention and the MLP, each with its skip connection
    x = x + block_pass.attention(qkv, normed, mask, count, read)
    return x + block_pass.mlp(x)


def is_open(block: nn.Module) -> bool:
    """Return True if the parts of a block are known, so that methods can enter it."""
    return bool(eva_blocks.is_readable(block) or part_names(block))


def _block_pass(
    block: Any, weights: Weights, inserts: Mapping[str, Insert], rotary: Rotary | None
) -> BlockPass:
    """Return the parts of a block, under the weights and the inserts of clients.

    Raises:
        FedLoomError: the block's class is unknown.
    """
    if eva_blocks.is_readable(block):
        return eva_blocks.EvaBlockPass(block, eva_blocks.EVA_PARTS, weights, inserts, rotary)
    names = part_names(block)
    if not names:
        raise FedLoomError(
            f"the inside of a {type(block).__name__} cannot be trained; use a backbone of timm's "
            "Block, with timm's Attention and Mlp, of timm's EvaBlock, or of open_clip's "
            "ResidualAttentionBlock, or a plugin whose block_parts name the parts of its blocks"
        )
    return BlockPass(block, names, weights, inserts, rotary)


def read_block(
    block: nn.Module,
    tokens: Tensor,
    read: Read,
    mask: Tensor | None = None,
    rotary: Rotary | None = None,
) -> Tensor:
    """Return the output [N, R, d] of a frozen block for the R tokens of [N, T, d] that are read.

    The library's block is called if it must be, because its inside is unknown, or if it is the
    faster one. It cannot turn tokens among which prompts stand.
    """
    by_library = read is EVERY and _library_is_faster(tokens) and not are_compiled()
    if is_of_plugin(block):
        # its library may round otherwise than `run_block`, or otherwise without gradients
        by_library = False
    if rotary is None and (by_library or not part_names(block)):
        if mask is None:
            return block(tokens)[:, read]
        return block(tokens, attn_mask=mask)[:, read]
    return run_block(block, tokens[None], {}, {}, mask, read, rotary)[0]


def _library_is_faster(tokens: Tensor) -> bool:
    """Return True in float32 on a CPU, where both blocks compute the same, bit for bit.

    In bfloat16 on a CPU, open_clip's block takes ten times as long as `run_block`. On a GPU, the
    backward passes of both libraries' attention copy the gradients of queries, keys and values once
    more, since their forward passes move the axis of the three to the front.
    """
    return not tokens.is_cuda and not is_bf16_on_cpu(tokens)


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
