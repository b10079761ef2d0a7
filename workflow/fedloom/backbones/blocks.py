"""A transformer block whose inside can be trained, with an explicit client axis.

The frozen path of a backbone calls its library's own blocks. This module computes the same block
step by step, so that each client may have separate weights, by name, and that a function may be put
in at each of its places:

    tokens ->-- "input" --+-- norm -- "q" "k" "v" -- attention -- "proj" -- "attention" --(+)--+
                          +--------------------------------->-----------------------------'     |
           +---------------------------------<--------------------------------------------------+
           +--+-- norm -- "fc1" -- activation -- "fc2" -- "mlp" --(+)--> tokens
              +------------------------->--------------------------'

An insert is a function of (what entered the place, what comes out of it), both with leading axes
[K, B, tokens], that returns what goes on in place of the latter. Adapters, LoRA, prefixes and deep
prompts are each one such function; `fedloom.toolbox` has them.

Where only some tokens of a block's output are read, as the class token behind the last block, the
others are not computed (`read_block`): they are needed as keys and values alone.
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
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from fedloom.common.errors import FedLoomError

# name of a parameter -> its values of every client [K, ...]
Weights = Mapping[str, Tensor]
Insert = Callable[[Tensor, Tensor], Tensor]
# number of a block, from 1 -> place -> insert
Inserts = Mapping[int, Mapping[str, Insert]]
# the tokens of a block's output that are read: an index of the axis T
Read = slice | Tensor
EVERY = slice(None)

PLACES = ("input", "q", "k", "v", "proj", "attention", "fc1", "fc2", "mlp")
# places that every token passes; the later ones see only the tokens whose output is read
BEFORE = {"input", "k", "v"}
# beginnings of the names of weights that are not of the embedding
BEHIND = ("blocks.", "norm.", "fc_norm.", "head.", "transformer.", "ln_post.", "proj")

# parts of a block: role, name in timm's Block, name in open_clip's ResidualAttentionBlock
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


def part_names(block: Any) -> dict[str, str]:
    """Return the dotted names of a block's parts by role; none if its inside is not known."""
    if isinstance(block, Block) and type(block.attn) is Attention and type(block.mlp) is Mlp:
        return {role: name for role, name, _ in BLOCK_PARTS}
    # known by its name, since to import open_clip takes seconds
    if type(block).__name__ == "ResidualAttentionBlock":
        return {role: name for role, _, name in BLOCK_PARTS if name}
    return {}


def check_inserts(inserts: Inserts | None, depth: int) -> None:
    """Check that inserts name blocks from 1 to `depth`, and places that a block has."""
    for number, places in (inserts or {}).items():
        if not (1 <= number <= depth and places.keys() <= set(PLACES)):
            known = f"blocks are 1 to {depth}, places are {', '.join(PLACES)}"
            raise FedLoomError(f"inserts: block {number}, places {[*places]}: {known}")


def check_weights(weights: Weights | None, module: nn.Module) -> None:
    """Check that weights have names, and behind the client axis shapes, of the module's."""
    for name, value in (weights or {}).items():
        try:
            shape = attrgetter(name)(module).shape
        except AttributeError:
            raise FedLoomError(f"weights: the backbone has no parameter '{name}'") from None
        if value.shape[1:] != shape:
            wanted = ", ".join(["clients", *map(str, shape)])
            raise FedLoomError(f"weights: '{name}' must be [{wanted}], got {list(value.shape)}")


def below(weights: Weights | None, prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names start with `prefix`, without it."""
    return {k[len(prefix) :]: v for k, v in (weights or {}).items() if k.startswith(prefix)}


class Embedding(nn.Module):
    """Embed images as a ViT of timm or open_clip does before its first block."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Embed normalised images [N, channels, H, W] as tokens [N, T, d]."""
        if hasattr(self.model, "_embeds"):
            return self.model._embeds(x)
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(x)))

    def embed(self, x: Tensor, shape: Sequence[int], weights: Weights | None) -> Tensor:
        """Embed images [N, channels, H, W] as tokens [*shape, T, d]: [K, B, T, d] with weights."""
        own = {f"model.{k}": v for k, v in (weights or {}).items() if not k.startswith(BEHIND)}
        if own:
            return per_client(self, x.unflatten(0, shape), own)
        return self(x).unflatten(0, shape)


def run_block(
    block: Any,
    tokens: Tensor,
    weights: Weights,
    inserts: Mapping[str, Insert],
    mask: Tensor | None = None,
    read: Read = EVERY,
) -> Tensor:
    """Apply a block to tokens [K, B, T, d].

    Args:
        weights: the clients' parameters, by name within the block; the others are the block's.
        mask: additive, of the attention of T tokens to T tokens: [T, T], or [K B heads, T, T].
            Keys that an insert puts in front of the others are seen by all.
        read: the R tokens whose output [K, B, R, d] is computed, counted behind the place "input".
    """
    # an insert may mix tokens: behind the attention it must get all of them
    if not inserts.keys() <= BEFORE and read is not EVERY:
        return run_block(block, tokens, weights, inserts, mask)[..., read, :]

    names = part_names(block)
    if not names:
        raise FedLoomError(
            f"the inside of a {type(block).__name__} cannot be trained; use a backbone of timm's "
            "Block, with timm's Attention and Mlp, or of open_clip's ResidualAttentionBlock"
        )

    def step(role: str, x: Tensor) -> Tensor:
        """Apply the part of this role, with the clients' weights; the block may lack it."""
        if role not in names:
            return x
        return layer(block.get_submodule(names[role]), x, below(weights, f"{names[role]}."))

    def place(name: str, given: Tensor, out: Tensor) -> Tensor:
        """Return what goes on behind a place: the insert's result, or `out` without an insert."""
        if name not in inserts:
            return out
        return inserts[name](given, out)

    # an insert at "input" may change T, the number of tokens
    x = place("input", tokens, tokens)  # [K, B, T, d]
    normed = step("norm1", x)

    # queries, keys and values by one matrix [3 d, d], or [K, 3 d, d], and its bias
    own = (names["in_weight"], names["in_bias"])
    weight, bias = (weights.get(name, attrgetter(name)(block)) for name in own)
    q, k, v = _project(normed, weight, bias, read)
    q = place("q", normed, q)
    k = place("k", normed, k)
    v = place("v", normed, v)

    # from here on, only the R tokens that are read
    if read is not EVERY:
        x = x[..., read, :]  # [K, B, R, d]
        normed = normed[..., read, :]
        if mask is not None:
            mask = mask[..., read, :]

    # the attention, with its skip connection
    mixed = _attend(step, (q, k, v), block.attn.num_heads, mask)  # [K, B, R, d]
    if getattr(block.attn, "gate", None) is not None:
        mixed = mixed * step("gate", normed).sigmoid()
    out = place("proj", mixed, step("proj", mixed))
    x = x + place("attention", normed, step("scale1", out))

    # the MLP, with its skip connection
    normed = step("norm2", x)
    hidden = step("activation", place("fc1", normed, step("fc1", normed)))  # [K, B, R, h]
    hidden = step("hidden_norm", hidden)
    out = place("fc2", hidden, step("fc2", hidden))
    return x + place("mlp", normed, step("scale2", out))


def read_block(block: nn.Module, tokens: Tensor, read: Read, mask: Tensor | None = None) -> Tensor:
    """Return the output [N, R, d] of a frozen block, on tokens [N, T, d], at the R that are read.

    The library's block computes all tokens, where all are read or its inside is not known; not in
    bf16 on a CPU, where open_clip's takes ten times as long.
    """
    by_library = (read is EVERY and not _bf16_on_cpu(tokens)) or not part_names(block)
    if by_library and mask is None:
        return block(tokens)[:, read]
    if by_library:
        return block(tokens, attn_mask=mask)[:, read]
    return run_block(block, tokens[None], {}, {}, mask, read)[0]


def run_blocks(
    blocks: nn.ModuleList,
    tokens: Tensor,
    weights: Weights,
    inserts: Inserts | None = None,
    mask: Tensor | None = None,
    gradient_checkpointing: bool = False,
    read: Read = EVERY,
) -> Tensor:
    """Apply all blocks to tokens [K, B, T, d]; weights are named as `0.attn.proj.bias`."""
    check_inserts(inserts, len(blocks))
    for number, block in enumerate(blocks, start=1):
        own = below(weights, f"{number - 1}.")
        places = (inserts or {}).get(number, {})

        # each block but the last is followed by one that reads all tokens
        wanted = EVERY
        if number == len(blocks):
            wanted = read

        step = partial(run_block, block, weights=own, inserts=places, mask=mask, read=wanted)
        tokens = recomputed(step, tokens, gradient_checkpointing)
    return tokens


def _project(normed: Tensor, weight: Tensor, bias: Tensor | None, read: Read) -> Sequence[Tensor]:
    """Return the queries [K, B, R, d] of the tokens that are read, keys and values [K, B, T, d]."""
    if read is EVERY:
        return linear_layer(normed, weight, bias).chunk(3, -1)

    # the rows of queries, and those of keys and values
    rows = [weight.shape[-2] // 3, weight.shape[-2] // 3 * 2]
    of_q, of_kv = weight.split(rows, -2)
    q_bias = None
    kv_bias = None
    if bias is not None:
        q_bias, kv_bias = bias.split(rows, -1)

    kv = linear_layer(normed, of_kv, kv_bias).chunk(2, -1)
    return linear_layer(normed[..., read, :], of_q, q_bias), *kv


def _attend(
    step: Callable[[str, Tensor], Tensor], qkv: Sequence[Tensor], heads: int, mask: Tensor | None
) -> Tensor:
    """Return what R queries [K, B, R, d] read of S keys and values [K, B, S, d]."""
    # divided by heads, [K B, heads, tokens, d / heads]
    shape = qkv[0].shape[:2]
    q, k, v = (x.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv)

    # a norm's own weights have the client axis in front
    q = step("q_norm", q.unflatten(0, shape)).flatten(0, 1)
    k = step("k_norm", k.unflatten(0, shape)).flatten(0, 1)

    # what each query may read; keys that an insert put in front are seen by all
    if mask is not None:
        if mask.dim() != 2:
            mask = mask.unflatten(0, (-1, heads))
        mask = F.pad(mask.to(q.dtype), (k.shape[-2] - mask.shape[-1], 0))

    if q.requires_grad and _bf16_on_cpu(q):
        # the backward pass of torch's fused attention takes five times as long there
        scores = (q * q.shape[-1] ** -0.5) @ k.mT  # [K B, heads, R, S]
        if mask is not None:
            scores = scores + mask
        mixed = scores.softmax(-1) @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return step("inner_norm", mixed.transpose(1, 2).flatten(2).unflatten(0, shape))


def _bf16_on_cpu(x: Tensor) -> bool:
    """Return True if operations on x compute in bfloat16 on a CPU."""
    return not x.is_cuda and torch.is_autocast_enabled("cpu")


def layer(module: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Apply a module along the last axis of x [K, ..., d], with weights by name within it."""
    if not weights:
        return module(x)
    if not isinstance(module, nn.Linear | nn.LayerNorm):
        return per_client(module, x, weights)

    weight, bias = (weights.get(name, getattr(module, name)) for name in ("weight", "bias"))
    if isinstance(module, nn.Linear):
        return linear_layer(x, weight, bias)

    # torch's layer norm takes no scale and shift per client: it normalises alone
    normed = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if weight is not None:
        normed = normed * _broadcast(weight, x)
    if bias is not None:
        normed = normed + _broadcast(bias, x)
    return normed


def per_client(module: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Apply any module to x [K, B, ...], each client's part with its own weights [K, ...]."""
    return torch.vmap(lambda own, x: functional_call(module, own, (x,)))(dict(weights), x)


def linear_layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b [K, ..., o] of x [K, ..., i], W [o, i] or [K, o, i], and b [o] or [K, o]."""
    # one weight for all clients
    if weight.dim() == 2:
        if bias is None or bias.dim() == 1:
            return F.linear(x, weight, bias)
        return F.linear(x, weight) + _broadcast(bias, x)

    # a weight per client
    flat = x.flatten(1, -2)  # [K, N, i]
    transposed = weight.mT  # [K, i, o]
    if bias is None:
        out = torch.bmm(flat, transposed)
    else:
        out = torch.baddbmm(bias.expand(len(x), -1).unsqueeze(1), flat, transposed)
    return out.unflatten(1, x.shape[1:-1])


def _broadcast(value: Tensor, x: Tensor) -> Tensor:
    """Return a vector [o], or one per client [K, o], so that it meets the last axis of x."""
    if value.dim() == 1:
        return value
    return value.view(len(value), *[1] * (x.dim() - 2), -1)


def recomputed(function: Callable[[Tensor], Tensor], tokens: Tensor, wanted: bool) -> Tensor:
    """Return function(tokens); if wanted, compute its inside again in the backward pass.

    This is gradient checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
    2016). The bits are the same, since nothing in a block is random.
    """
    if not wanted or not torch.is_grad_enabled():
        return function(tokens)
    # to keep the random state would copy it from the GPU for every block, and wait
    result: Any = checkpoint(function, tokens, use_reentrant=False, preserve_rng_state=False)
    return result
