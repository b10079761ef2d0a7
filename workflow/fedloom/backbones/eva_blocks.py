"""The inside of timm's `EvaBlock`: EVA-02, DINOv3 and other ViTs are built of it.

It differs from timm's `Block`: queries, keys and values may have a layer each, or one matrix with
two biases, since keys have none; and the layer scales are parameters of the block.
"""

from collections.abc import Sequence
from typing import Any

import torch
from timm.models.eva import EvaBlock
from torch import Tensor

from fedloom.backbones.block_pass import BLOCK_PARTS, MLPS, BlockPass, project_together
from fedloom.backbones.token_order import Read

# roles of the parts that an EvaBlock has otherwise than timm's Block
OTHERWISE = {"in_weight", "in_bias", "scale1", "scale2"}
# the name of each other part, by role
EVA_PARTS = {role: name for role, name, _ in BLOCK_PARTS if role not in OTHERWISE}
# the parameters that scale what the attention and the MLP add
SCALES = {"scale1": "gamma_1", "scale2": "gamma_2"}


def is_readable(block: Any) -> bool:
    """Return True if the inside of a block is that of an EvaBlock in which every head has keys."""
    if type(block) is not EvaBlock or type(block.mlp) not in MLPS:
        return False
    return getattr(block.attn, "num_kv_groups", 1) == 1


class EvaBlockPass(BlockPass):
    """The parts of an `EvaBlock`, under the weights and the inserts of K clients."""

    def projections(self, normed: Tensor, read: Read) -> Sequence[Tensor]:
        """Return the queries [K, B, R, d] of the tokens that are read, and all keys and values."""
        if self._block.attn.qkv is not None:
            weight = self.parameter("attn.qkv.weight")
            return project_together(normed, weight, self._joint_bias(), read)
        return (
            self.layer("attn.q_proj", normed[..., read, :]),
            self.layer("attn.k_proj", normed),
            self.layer("attn.v_proj", normed),
        )

    def scale(self, role: str, x: Tensor) -> Tensor:
        """Return x [K, B, R, d] times the block's gamma of a role, if it has one."""
        gamma = self.parameter(SCALES[role])
        if gamma is None:
            return x
        if gamma.dim() == 2:
            gamma = gamma[:, None, None]  # [K, 1, 1, d]
        return gamma * x

    def _joint_bias(self) -> Tensor | None:
        """Return the bias [3 d] or [K, 3 d] of queries, keys and values; None without one."""
        attention = self._block.attn
        if attention.qkv.bias is not None:
            return self.parameter("attn.qkv.bias")
        if getattr(attention, "q_bias", None) is None:
            return None

        # keys have no bias, but a buffer of zeros
        queries = self.parameter("attn.q_bias")
        values = self.parameter("attn.v_bias")
        keys = attention.k_bias

        # where one of the two is the clients', give the others a client axis
        clients = max(queries.dim(), values.dim())
        if clients == 2:
            count = max(len(bias) for bias in (queries, values) if bias.dim() == 2)
            queries, keys, values = (bias.expand(count, -1) for bias in (queries, keys, values))
        return torch.cat([queries, keys, values], -1)
