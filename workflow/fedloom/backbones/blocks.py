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

Shapes: K clients, B batch, T tokens, d width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, singledispatch
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from fedloom.common.errors import FedLoomError

Weights = Mapping[str, Tensor]  # name of a parameter -> its values of every client [K, ...]
Insert = Callable[[Tensor, Tensor], Tensor]
Inserts = Mapping[int, Mapping[str, Insert]]  # number of a block, from 1 -> place -> insert
Read = slice | Tensor  # the tokens of a block's output that are read: an index of the axis T

# shapes of a module's parameters by name, which every training step asks for
SHAPES: WeakKeyDictionary[nn.Module, dict[str, torch.Size]] = WeakKeyDictionary()
PLACES = ("input", "q", "k", "v", "proj", "attention", "fc1", "fc2", "mlp")
BEFORE = {"input", "k", "v"}  # the places that a token passes which is a key and value alone
EVERY = slice(None)


@dataclass(frozen=True)
class Parts:
    """The modules of a block by their role, whichever library the block is of.

    `names` holds the dotted name of each role within the block; the in-projection of queries, keys
    and values goes by the names of its weight and its bias.
    """

    block: nn.Module
    names: dict[str, str]
    heads: int

    def module(self, role: str) -> nn.Module | None:
        """Return the module of a role, None if the block has none."""
        name = self.names.get(role)
        return None if name is None else self.block.get_submodule(name)


@singledispatch
def known_parts(block: nn.Module) -> Parts | None:
    """Return the parts of a block, None if it is of a kind whose inside is not known.

    A library's kind of block is registered here or, as open_clip's, where the library is imported.
    """
    return None


TIMM = {
    "norm1": "norm1",
    "in_weight": "attn.qkv.weight",
    "in_bias": "attn.qkv.bias",
    "q_norm": "attn.q_norm",
    "k_norm": "attn.k_norm",
    "inner_norm": "attn.norm",
    "proj": "attn.proj",
    "scale1": "ls1",
    "norm2": "norm2",
    "fc1": "mlp.fc1",
    "activation": "mlp.act",
    "hidden_norm": "mlp.norm",
    "fc2": "mlp.fc2",
    "scale2": "ls2",
}


@known_parts.register
def _(block: Block) -> Parts | None:
    if type(block.attn) is not Attention or type(block.mlp) is not Mlp:
        return None
    gate = {} if block.attn.gate is None else {"gate": "attn.gate"}
    return Parts(block, TIMM | gate, block.attn.num_heads)


def check_inserts(inserts: Inserts | None, depth: int) -> None:
    """Check that inserts name blocks from 1 to `depth`, and places that a block has."""
    for number, places in (inserts or {}).items():
        if not 1 <= number <= depth:
            raise FedLoomError(f"inserts: there is no block {number}; blocks are 1 to {depth}")
        for place in places:
            if place not in PLACES:
                hint = f"there are {', '.join(PLACES)}"
                raise FedLoomError(f"inserts: no place '{place}' in a block; {hint}")


def check_weights(weights: Weights | None, module: nn.Module) -> None:
    """Check that weights have names, and behind the client axis shapes, of the module's."""
    if not weights:
        return
    if module not in SHAPES:
        named = (*module.named_parameters(), *module.named_buffers())
        SHAPES[module] = {name: value.shape for name, value in named}
    shapes = SHAPES[module]
    for name, value in weights.items():
        if name not in shapes:
            raise FedLoomError(f"weights: the backbone has no parameter '{name}'")
        if value.shape[1:] != shapes[name]:
            raise FedLoomError(
                f"weights: '{name}' must be [clients, {', '.join(map(str, shapes[name]))}], got "
                f"{list(value.shape)}"
            )


def below(weights: Weights | None, prefix: str) -> dict[str, Tensor]:
    """Return the weights whose names start with `prefix`, without it."""
    return {k[len(prefix) :]: v for k, v in (weights or {}).items() if k.startswith(prefix)}


def run_block(
    block: nn.Module,
    tokens: Tensor,
    weights: Weights,
    inserts: Mapping[str, Insert],
    mask: Tensor | None = None,
    read: Read = EVERY,
) -> Tensor:
    """Apply a block to tokens [K, B, T, d].

    Args:
        weights: the clients' parameters, by name within the block; the others are the block's.
        mask: additive, of the attention of T tokens to T tokens: [T, T], or [K B, heads, T, T].
            Keys that an insert puts in front of the others are seen by all.
        read: the R tokens whose output [K, B, R, d] is computed, counted behind the place "input".
    """
    if not inserts.keys() <= BEFORE and read is not EVERY:  # a function may mix tokens
        return run_block(block, tokens, weights, inserts, mask)[..., read, :]
    parts = known_parts(block)
    if parts is None:
        inside = (getattr(block, name, None) for name in ("attn", "mlp"))
        kinds = [type(module).__name__ for module in (block, *inside) if module is not None]
        raise FedLoomError(
            f"a block of the kind {' with '.join(kinds)}: its inside cannot be trained, and "
            "nothing put in; use a backbone of timm's Block, with timm's Attention and Mlp, or of "
            "open_clip's ResidualAttentionBlock"
        )

    def step(role: str, x: Tensor) -> Tensor:
        module, name = parts.module(role), parts.names.get(role, "")
        return x if module is None else layer(module, x, below(weights, f"{name}."))

    def place(name: str, given: Tensor, out: Tensor) -> Tensor:
        return inserts[name](given, out) if name in inserts else out

    x = place("input", tokens, tokens)  # [K, B, T, d]; T may have changed
    normed = step("norm1", x)
    own = (parts.names["in_weight"], parts.names["in_bias"])  # [3 d, d], or [K, 3 d, d]; its bias
    weight, bias = (weights.get(name, attrgetter(name)(block)) for name in own)
    q, k, v = _project(normed, weight, bias, read)
    q, k, v = place("q", normed, q), place("k", normed, k), place("v", normed, v)
    if read is not EVERY:
        x, normed = x[..., read, :], normed[..., read, :]  # [K, B, R, d]
        mask = None if mask is None else mask[..., read, :]
    mixed = _attend(step, q, k, v, parts.heads, mask)  # [K, B, R, d]
    if "gate" in parts.names:
        mixed = mixed * step("gate", normed).sigmoid()
    out = place("proj", mixed, step("proj", mixed))
    x = x + place("attention", normed, step("scale1", out))
    normed = step("norm2", x)
    hidden = step("activation", place("fc1", normed, step("fc1", normed)))  # [K, B, T, h]
    hidden = step("hidden_norm", hidden)
    out = place("fc2", hidden, step("fc2", hidden))
    return x + place("mlp", normed, step("scale2", out))


def read_block(block: nn.Module, tokens: Tensor, read: Read, mask: Tensor | None = None) -> Tensor:
    """Return the output [N, R, d] of a frozen block, on tokens [N, T, d], at the R that are read.

    The library's block computes all tokens, where all are read or its inside is not known; not in
    bf16 on a CPU, where open_clip's takes ten times as long. The mask is as the block takes it:
    [T, T], or [N heads, T, T].
    """
    if (read is EVERY and not _bf16_on_cpu(tokens)) or known_parts(block) is None:
        return (block(tokens) if mask is None else block(tokens, attn_mask=mask))[:, read]
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (len(tokens), -1))  # [N, heads, T, T]
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
    """Apply all of a tower's blocks to tokens [K, B, T, d].

    `weights` are named within `blocks` (`0.attn.proj.bias`); of the last block, the R tokens that
    are `read` are returned [K, B, R, d]. See `run_block` and `recomputed`.
    """
    check_inserts(inserts, len(blocks))
    for number, block in enumerate(blocks, start=1):
        own, places = below(weights, f"{number - 1}."), (inserts or {}).get(number, {})
        wanted = read if number == len(blocks) else EVERY
        step = partial(run_block, block, weights=own, inserts=places, mask=mask, read=wanted)
        tokens = recomputed(step, tokens, gradient_checkpointing)
    return tokens


def _project(
    normed: Tensor, weight: Tensor, bias: Tensor | None, read: Read
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries [K, B, R, d] of the tokens that are read, keys and values [K, B, T, d]."""
    if read is EVERY:
        q, k, v = linear_layer(normed, weight, bias).chunk(3, -1)
        return q, k, v
    rows = weight.shape[-2] // 3
    one, two = weight.split([rows, 2 * rows], -2)
    b, c = (None, None) if bias is None else bias.split([rows, 2 * rows], -1)
    k, v = linear_layer(normed, two, c).chunk(2, -1)
    return linear_layer(normed[..., read, :], one, b), k, v


def _attend(
    step: Callable[[str, Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None,
) -> Tensor:
    """Return what R queries [K, B, R, d] read of S keys and values [K, B, S, d]."""
    shape = q.shape[:3]
    q, k, v = (x.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    q, k = (  # [K B, heads, tokens, d / heads]; a norm's own weights have the client axis in front
        step(role, x.unflatten(0, shape[:2])).flatten(0, 1)
        for role, x in (("q_norm", q), ("k_norm", k))
    )
    if mask is not None:
        mask = F.pad(mask.to(q.dtype), (k.shape[-2] - mask.shape[-1], 0))
    if q.requires_grad and _bf16_on_cpu(q):
        # the backward pass of torch's fused attention takes five times as long there
        scores = (q * q.shape[-1] ** -0.5) @ k.mT  # [K B, heads, R, S]
        mixed = (scores if mask is None else scores + mask).softmax(-1) @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return step("inner_norm", mixed.transpose(1, 2).flatten(2).unflatten(0, shape[:2]))


def _bf16_on_cpu(x: Tensor) -> bool:
    return not x.is_cuda and torch.is_autocast_enabled("cpu")


def layer(module: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Apply a module along the last axis of x [K, ..., d], with weights by name within it."""
    if not weights:
        return module(x)
    if isinstance(module, nn.Linear):
        weight, bias = (weights.get(name, getattr(module, name)) for name in ("weight", "bias"))
        return linear_layer(x, weight, bias)
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        weight, bias = (weights.get(name, getattr(module, name)) for name in ("weight", "bias"))
        normed = F.layer_norm(x, module.normalized_shape, eps=module.eps)
        if weight is not None:
            normed = normed * _broadcast(weight, x)
        return normed if bias is None else normed + _broadcast(bias, x)
    return per_client(module, x, weights)


def per_client(module: nn.Module, x: Tensor, weights: Weights) -> Tensor:
    """Apply any module to x [K, B, ...], each client's part with its own weights [K, ...]."""
    return torch.vmap(lambda own, x: functional_call(module, own, (x,)))(dict(weights), x)


def linear_layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b [K, ..., o] of x [K, ..., i], W [o, i] or [K, o, i], and b [o] or [K, o]."""
    if weight.dim() == 2:
        if bias is None or bias.dim() == 1:
            return F.linear(x, weight, bias)
        return F.linear(x, weight) + _broadcast(bias, x)
    flat, transposed = x.flatten(1, -2), weight.mT  # [K, N, i], [K, i, o]
    if bias is None:
        out = torch.bmm(flat, transposed)
    else:
        out = torch.baddbmm(bias.expand(len(x), -1).unsqueeze(1), flat, transposed)
    return out.unflatten(1, x.shape[1:-1])


def _broadcast(value: Tensor, x: Tensor) -> Tensor:
    """Return a vector [o], or one per client [K, o], so that it meets the last axis of x."""
    return value if value.dim() == 1 else value.view(len(value), *[1] * (x.dim() - 2), -1)


def recomputed(function: Callable[[Tensor], Tensor], tokens: Tensor, wanted: bool) -> Tensor:
    """Return function(tokens); if wanted, keep nothing of its inside for the backward pass.

    The inside is then computed a second time (gradient checkpointing: Chen et al., "Training Deep
    Nets with Sublinear Memory Cost", 2016), to the same bits: nothing in a block is random.
    """
    if not wanted or not torch.is_grad_enabled():
        return function(tokens)
    # to keep the random state would copy it from the GPU for every block, and wait
    result: Any = checkpoint(function, tokens, use_reentrant=False, preserve_rng_state=False)
    return result
