"""One pass through a transformer block, part by part, with the weights and inserts of clients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import GluMlp, Mlp, SwiGLU
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from fedloom.backbones.client_layers import Weights, apply_layer, linear_layer, select_weights
from fedloom.backbones.token_order import EVERY, Read, Rotary
from fedloom.common.errors import FedLoomError, suggestion

Insert = Callable[[Tensor, Tensor], Tensor]
# MLPs of timm whose inside is known: plain ones, and those in which gates multiply values
MLPS = (Mlp, GluMlp, SwiGLU)

# parts of a block: role, name in timm's Block, name in open_clip's ResidualAttentionBlock ("":
# none)
BLOCK_PARTS = (
    ("heads", "attn.num_heads", "attn.num_heads"),
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
# layers for queries, keys and values apart, in the place of one matrix for all three
APART = ("q", "k", "v")
# The roles of the parts of a block. "heads" is the number of heads; "in_weight" and "in_bias" are
# the matrix [3 d, d] and the bias [3 d] of queries, keys and values, in this order; all others are
# layers.
ROLES = (*(role for role, _, _ in BLOCK_PARTS), *APART)
# the types of the parts that are no modules
ROLE_TYPES: dict[str, type] = {"heads": int, "in_weight": nn.Parameter, "in_bias": nn.Parameter}
# the roles that every block has, beside those of its queries, keys and values
NEEDED_ROLES = ("heads", "norm1", "proj", "norm2", "fc1", "activation", "fc2")
# the attribute of a plugin's block that holds the names of its parts
PART_NAMES = "fedloom_part_names"


def name_parts(blocks: Iterable[nn.Module], names: Mapping[str, str]) -> None:
    """State the dotted names of the parts of a plugin's blocks, by role, for `part_names`."""
    for block in blocks:
        setattr(block, PART_NAMES, dict(names))


def check_part_names(blocks: Sequence[nn.Module], names: Mapping[str, str]) -> None:
    """Check the dotted names of the parts of a plugin's blocks, by role.

    Raises:
        FedLoomError: a role is unknown or lacks a name, or a block has no part of a name.
    """
    if not names:
        return
    unknown = [role for role in names if role not in ROLES]
    if unknown:
        raise FedLoomError(f"block_parts: no role '{unknown[0]}'; {suggestion(unknown[0], ROLES)}")

    projections = ("in_weight",)
    if "q" in names:
        projections = APART
    missing = [role for role in (*NEEDED_ROLES, *projections) if role not in names]
    if missing:
        raise FedLoomError(f"block_parts must name the part of the role '{missing[0]}', got none")

    for number, block in enumerate(blocks):
        for role, name in names.items():
            try:
                part = attrgetter(name)(block)
            except AttributeError:
                raise FedLoomError(
                    f"block_parts: blocks[{number}] has no '{name}', which the role '{role}' names"
                ) from None
            wanted = ROLE_TYPES.get(role, nn.Module)
            if not isinstance(part, wanted):
                raise FedLoomError(
                    f"block_parts: the role '{role}' must name a {wanted.__name__}, got '{name}', "
                    f"a {type(part).__name__}"
                )


def is_of_plugin(block: nn.Module) -> bool:
    """Return True if a plugin has stated the names of the block's parts."""
    return bool(getattr(block, PART_NAMES, None))


def part_names(block: Any) -> Mapping[str, str]:
    """Return the dotted name of each part of a block, by role.

    It is empty if the block's class is unknown.
    """
    if is_of_plugin(block):
        return getattr(block, PART_NAMES)
    if isinstance(block, Block) and type(block.attn) is Attention and type(block.mlp) in MLPS:
        return {role: name for role, name, _ in BLOCK_PARTS}
    # compare the name of the class, because the import of open_clip takes seconds
    if type(block).__name__ == "ResidualAttentionBlock":
        return {role: name for role, _, name in BLOCK_PARTS if name}
    return {}


class BlockPass:
    """The parts of a block, under the weights and the inserts of K clients."""

    def __init__(
        self,
        block: Any,
        names: Mapping[str, str],
        weights: Weights,
        inserts: Mapping[str, Insert],
        rotary: Rotary | None = None,
    ):
        """Take a block and the dotted `names` of its parts; for the rest see `blocks.run_block`."""
        self._block = block
        self._names = names
        self._weights = weights
        self._inserts = inserts
        self._rotary = rotary

    def apply(self, role: str, x: Tensor) -> Tensor:
        """Apply the part of a role, under the clients' weights; return x if the block lacks it."""
        if role not in self._names:
            return x
        return self.layer(self._names[role], x)

    def layer(self, name: str, x: Tensor) -> Tensor:
        """Apply a layer of the block, by its dotted name, under the clients' weights."""
        part = self._block.get_submodule(name)
        return apply_layer(part, x, select_weights(self._weights, f"{name}."))

    def place(self, name: str, given: Tensor, out: Tensor) -> Tensor:
        """Return what goes on after a place: the insert's result, or `out` without an insert."""
        if name not in self._inserts:
            return out
        return self._inserts[name](given, out)

    def project(self, normed: Tensor, read: Read) -> Sequence[Tensor]:
        """Return the queries [K, B, R, d] of the tokens that are read, and all keys and values."""
        q, k, v = self.projections(normed, read)
        return (
            self.place("q", normed, q),
            self.place("k", normed, k),
            self.place("v", normed, v),
        )

    def projections(self, normed: Tensor, read: Read) -> Sequence[Tensor]:
        """Return what `project` returns, without inserts."""
        if "q" in self._names:
            q = self.apply("q", normed[..., read, :])
            return q, self.apply("k", normed), self.apply("v", normed)

        # one matrix, [3 d, d] or [K, 3 d, d], and one bias give queries, keys and values
        weight = self.parameter(self._names["in_weight"])
        bias = None
        if "in_bias" in self._names:
            bias = self.parameter(self._names["in_bias"])
        return project_together(normed, weight, bias, read)

    def parameter(self, name: str) -> Any:
        """Return a parameter of the block by its name: the clients' [K, ...], or its own."""
        if name in self._weights:
            return self._weights[name]
        return attrgetter(name)(self._block)

    def scale(self, role: str, x: Tensor) -> Tensor:
        """Return x [K, B, R, d] scaled by the block's layer scale of a role, if it has one."""
        return self.apply(role, x)

    def attention(
        self, qkv: Sequence[Tensor], normed: Tensor, mask: Tensor | None, count: int, read: Read
    ) -> Tensor:
        """Return what the attention adds to the R tokens that are read, [K, B, R, d].

        Args:
            normed: these tokens after the first norm, [K, B, R, d].
            count: T, the number of the block's tokens.
            read: the R tokens that are read, as an index of these.
        """
        mixed = self._attend(qkv, mask, count, read)  # [K, B, R, d]
        if self._has("gate"):
            mixed = mixed * self.apply("gate", normed).sigmoid()
        out = self.place("proj", mixed, self.apply("proj", mixed))
        return self.place("attention", normed, self.scale("scale1", out))

    def mlp(self, x: Tensor) -> Tensor:
        """Return what the MLP adds to the R tokens that are read, [K, B, R, d]."""
        normed = self.apply("norm2", x)
        hidden = self.place("fc1", normed, self._first_layer(normed))
        hidden = self.apply("hidden_norm", self._activate(hidden))  # [K, B, R, h]
        out = self.place("fc2", hidden, self.apply("fc2", hidden))
        return self.place("mlp", normed, self.scale("scale2", out))

    def _first_layer(self, normed: Tensor) -> Tensor:
        """Return what the MLP's first layer gives: [K, B, R, h], or 2 h with a gate per value."""
        if not isinstance(self._gated_mlp(), SwiGLU):
            return self.apply("fc1", normed)
        return torch.cat([self.layer(name, normed) for name in ("mlp.fc1_g", "mlp.fc1_x")], -1)

    def _activate(self, hidden: Tensor) -> Tensor:
        """Return the activations [K, B, R, h] of what the first layer gives."""
        mlp = self._gated_mlp()
        if mlp is None:
            return self.apply("activation", hidden)

        # the activation of a gate multiplies its value
        gates, values = hidden.chunk(2, -1)
        if getattr(mlp, "gate_last", False):
            gates, values = values, gates
        return mlp.act(gates) * values

    def _gated_mlp(self) -> Any:
        """Return timm's MLP of the block if gates multiply its values, else None."""
        mlp = getattr(self._block, "mlp", None)
        if isinstance(mlp, GluMlp | SwiGLU):
            return mlp
        return None

    def _has(self, role: str) -> bool:
        """Return True if the block has a part of this role."""
        if role not in self._names:
            return False
        try:
            return attrgetter(self._names[role])(self._block) is not None
        except AttributeError:
            return False

    def _attend(self, qkv: Sequence[Tensor], mask: Tensor | None, count: int, read: Read) -> Tensor:
        """Return what R queries [K, B, R, d] read from S keys and values [K, B, S, d]."""
        # split into heads, [K B, heads, tokens, d / heads]
        heads = self.parameter(self._names["heads"])
        shape = qkv[0].shape[:2]
        q, k, v = (x.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv)

        # norms may have clients' weights, which need the client axis in front
        q = self.apply("q_norm", q.unflatten(0, shape)).flatten(0, 1)
        k = self.apply("k_norm", k.unflatten(0, shape)).flatten(0, 1)

        # turn both by the positions of their patches
        if self._rotary is not None:
            rows = self._rotary.rows(count)
            q = self._rotary.turn(q, rows[..., read, :])
            k = self._rotary.turn(k, rows)

        # extend the mask: all queries see the keys that an insert has put in front
        if mask is not None:
            if mask.dim() != 2:
                mask = mask.unflatten(0, (-1, heads))
            mask = mask.to(q.dtype)
            keys_in_front = k.shape[-2] - mask.shape[-1]
            if keys_in_front:
                mask = F.pad(mask, (keys_in_front, 0))

        if q.requires_grad and is_bf16_on_cpu(q):
            # here the backward pass of torch's fused attention would take five times as long
            scores = (q * q.shape[-1] ** -0.5) @ k.mT  # [K B, heads, R, S]
            if mask is not None:
                scores = scores + mask
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.apply("inner_norm", mixed.transpose(1, 2).flatten(2).unflatten(0, shape))


def project_together(
    normed: Tensor, weight: Tensor, bias: Tensor | None, read: Read
) -> Sequence[Tensor]:
    """Return queries [K, B, R, d] of the tokens that are read, and keys and values [K, B, T, d].

    One weight [3 d, d] or [K, 3 d, d], and one bias [3 d] or [K, 3 d], give all three.
    """
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


def is_bf16_on_cpu(x: Tensor) -> bool:
    """Return True if operations on x compute in bfloat16 on a CPU."""
    return not x.is_cuda and torch.is_autocast_enabled("cpu")
