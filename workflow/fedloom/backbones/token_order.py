"""The order of a ViT's tokens, with prompts among them, and their rotary positions."""

from dataclasses import dataclass

import torch
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from torch import Tensor

from fedloom.common.errors import FedLoomError

# tokens of a sequence, as an index of the axis T
Read = slice | Tensor
EVERY = slice(None)


@dataclass(frozen=True)
class TokenOrder:
    """The order of a ViT's own tokens: the class token, registers, then patches.

    Methods put prompts behind the first token. A ViT may have neither class token nor registers.
    Its first patch then stands in front of the prompts, which changes nothing: the positions of
    patches are part of their tokens, or of their rotation.

    Attributes:
        prefix: how many tokens stand in front of the patches: the class token and the registers.
        patches: the number of patches.
    """

    prefix: int
    patches: int

    @property
    def own_count(self) -> int:
        """The number of tokens of an image without prompts."""
        return self.prefix + self.patches

    def without_prompts(self, tokens: Tensor) -> Tensor:
        """Return the ViT's own tokens [..., prefix + patches, d] of [..., T, d].

        Raises:
            FedLoomError: there are fewer tokens than the ViT's own.
        """
        prompts = tokens.shape[-2] - self.own_count
        if prompts < 0:
            raise FedLoomError(
                f"pool must get all {self.own_count} tokens of the ViT, got {tokens.shape[-2]}; "
                'call blocks or block with read="pooled"'
            )
        if not prompts:
            return tokens
        return torch.cat([tokens[..., :1, :], tokens[..., 1 + prompts :, :]], -2)


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary positions (Su et al., RoFormer, 2021): queries and keys turn by where a patch is.

    Only patches turn. The class token, registers, prompts and keys that an insert puts in front
    have no position, and stay as they are.

    Attributes:
        table: sines, then cosines, of each patch, [patches, 2 d_head], or [heads, patches, 2
            d_head] if every head has its own.
        order: the order of the tokens.
        halves: True if the numbers i and i + d_head / 2 of a vector turn together, and False if the
            numbers 2 i and 2 i + 1 do.
    """

    table: Tensor
    order: TokenOrder
    halves: bool

    def rows(self, count: int) -> Tensor:
        """Return the sines and cosines [..., T, 2 d_head] of a sequence of T = `count` tokens."""
        still = self._still(count - self.order.patches)
        if self.order.prefix:
            return torch.cat([still, self.table], -2)

        # the first patch stands in front of the prompts
        return torch.cat([self.table[..., :1, :], still, self.table[..., 1:, :]], -2)

    def turn(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return queries or keys [N, heads, S, d_head] turned by the last S of their rows.

        Args:
            rows: [..., R, 2 d_head]. The S - R vectors in front stay as they are.
        """
        in_front = x.shape[-2] - rows.shape[-2]
        if in_front:
            rows = torch.cat([self._still(in_front), rows], -2)
        return apply_rot_embed_cat(x, rows, half=self.halves)

    def _still(self, count: int) -> Tensor:
        """Return the rows [..., count, 2 d_head] of tokens that do not turn: sine 0, cosine 1."""
        sines = torch.zeros_like(self.table[..., :1, : self.table.shape[-1] // 2])
        row = torch.cat([sines, torch.ones_like(sines)], -1)
        return row.expand(*row.shape[:-2], count, -1)
