"""Text towers of open_clip with a causal mask, for learned contexts in front of class names.

A prompt is [SOS, context, ending, EOT]. The ending of a class is its name and a full stop.
open_clip computes 77 positions for each class. This module saves time in two ways: it leaves out
positions behind an EOT, and it computes what all classes share, [SOS, context], only once. The
classes of a context form one sequence:

    SOS context | ending of class 1, EOT | ending of class 2, EOT | ...

A mask lets each ending see only [SOS, context] and itself. Each ending has the position embeddings
that it would have directly behind the context. A context may be shorter than the longest of its
batch. Then the ending still has the positions that follow the shorter context, and nothing sees the
padding between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones import blocks
from fedloom.backbones.blocks import EVERY
from fedloom.backbones.clip.text_tower import FILLER, Inside, TextTower, longest_context
from fedloom.machine.device import arithmetic

# The largest number of tokens of the endings that share a sequence. The cost of attention grows
# with the square of this number, and every further sequence costs the context again. Counted in
# multiplications, this value is within an eighth of the best one at widths 64 and 512.
TOKENS_AT_ONCE = 192


@dataclass(frozen=True, eq=False)
class _EndingGroup:
    """The endings of some classes, one behind the other: Q tokens, including those that fill up."""

    # the tokens [Q, d], without position embeddings
    embedded: Tensor
    # the class that a token belongs to, int64 [Q]
    owner: Tensor
    # the position of a token behind the context, from 0, int64 [Q]
    step: Tensor
    # the index of the EOT token of each class, int64 [C]
    ends: Tensor
    # the number of tokens of the longest ending, including its EOT
    longest: int


class PackedTexts(TextTower):
    """Compute text features in a tower with a causal mask, which reads a text at its EOT."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        name: str,
        precision: str,
        tokens_at_once: int = TOKENS_AT_ONCE,
    ):
        """Take the text tower of `model`, with at most `tokens_at_once` tokens of names at once."""
        super().__init__(model, tokenizer, name, precision)
        self._tokens_at_once = tokens_at_once
        self._groups = dict[tuple, list[_EndingGroup]]()
        self._start = self.embed(self.start)  # [1, d]

    def longest(self, endings: Sequence[str]) -> int:
        """Return the number of tokens of the longest ending, including its EOT."""
        return max(group.longest for group in self._grouped(endings))

    def floats(self, endings: Sequence[str]) -> int:
        """Return S d depth, the floats of all endings (S tokens) at the inputs of all blocks."""
        return self.depth * sum(group.embedded.numel() for group in self._grouped(endings))

    def __call__(
        self,
        context: Tensor,
        endings: Sequence[str],
        length: Tensor | None = None,
        eot_offset: Tensor | None = None,
        own: Inside | None = None,
    ) -> Tensor:
        """Return features [N, C, d_joint], see `TextTower.__call__`."""
        filling, longest = longest_context(context, length, eot_offset)
        self.require_places(longest, endings)

        # a group is one sequence of the start, the context and the endings
        parts = []
        for group in self._grouped(endings, filling):
            run = partial(
                self._run_group, group=group, length=length, eot_offset=eot_offset, own=own
            )
            parts.append((run, 1 + context.shape[1] + len(group.step)))
        return self.project(self.run_parts(context, parts), own)

    def _run_group(
        self,
        context: Tensor,
        group: _EndingGroup,
        length: Tensor | None,
        eot_offset: Tensor | None,
        own: Inside | None,
    ) -> Tensor:
        """Return the last block's output [N, C, d] at the tokens where C classes are read.

        `group` has the endings of these classes.
        """
        prefix = 1 + context.shape[1]
        x = self._embed_sequences(context, group, length, eot_offset)  # [N, S, d]
        mask = self._sequence_mask(group, prefix, length)

        # read at the EOTs; with eot_offset, each context has its own places, which are gathered
        # below
        ends: blocks.Read = EVERY
        if eot_offset is None:
            ends = prefix + group.ends  # [C]
        with arithmetic(self._precision, x.device):
            # cast the mask once, not in every block
            if torch.is_autocast_enabled(x.device.type):
                mask = mask.to(torch.get_autocast_dtype(x.device.type))
            x = self.run_blocks(x, mask, own, ends)  # [N, C, d], with eot_offset [N, S, d]
        if eot_offset is None:
            return x

        read = prefix + group.ends + eot_offset[:, None]  # [N, C]
        return x.gather(1, read[..., None].expand(-1, -1, x.shape[-1]))

    def _embed_sequences(
        self, context: Tensor, group: _EndingGroup, length: Tensor | None, eot_offset: Tensor | None
    ) -> Tensor:
        """Return the sequences [N, S, d] of SOS, context and endings, with position embeddings."""
        prefix = 1 + context.shape[1]
        start = self._start.expand(len(context), 1, -1)  # [N, 1, d]
        ending = group.embedded.expand(len(context), -1, -1)  # [N, Q, d]
        embedding = self._text.positional_embedding  # [places, d]

        # the positions of the ending, behind contexts of one length or of several lengths
        if length is None:
            position = prefix + group.step  # [Q]
        else:
            position = 1 + length[:, None] + group.step  # [N, Q]

        # embeddings at the tower's last `eot_offset` places are zeros
        if eot_offset is not None:
            cut = position >= self.places - eot_offset[:, None]  # [N, Q]
            ending = ending.masked_fill(cut[..., None], 0)

        # clamp positions behind the tower's last place, where no feature is read
        position = embedding[position.clamp(max=self.places - 1)]  # [Q, d] or [N, Q, d]
        return torch.cat(
            [torch.cat([start, context], 1) + embedding[:prefix], ending + position], 1
        )

    def _sequence_mask(self, group: _EndingGroup, prefix: int, length: Tensor | None) -> Tensor:
        """Return the mask of the tokens that each token may see, where S = prefix + Q.

        It is [S, S] for contexts of one length, else [N heads, S, S].
        """
        mask = _mask(group, prefix)
        if length is None:
            return mask
        # no token sees the padding; every token still sees SOS
        order = torch.arange(len(mask), device=mask.device)
        padding = (order < prefix) & (order > length[:, None])  # [N, S]
        heads = self._text.transformer.resblocks[0].attn.num_heads
        return mask.masked_fill(padding.unsqueeze(1), -inf).repeat_interleave(heads, 0)

    def _grouped(self, endings: Sequence[str], filling: int = 0) -> list[_EndingGroup]:
        """Return the groups of `endings`, with `filling` tokens behind each EOT; made only once."""
        key = (*endings, filling)
        if key not in self._groups:
            tokens = [[*self.ids(text), self._tokenizer.eot_token_id] for text in endings]
            self._groups[key] = [
                self._group(part, filling) for part in _parts(tokens, self._tokens_at_once)
            ]
        return self._groups[key]

    def _group(self, tokens: list[list[int]], filling: int) -> _EndingGroup:
        """Return the group of the endings `tokens`, with `filling` tokens behind each EOT."""
        where = self._text.positional_embedding.device
        sizes = torch.tensor([len(ids) + filling for ids in tokens], device=where)  # [C]
        return _EndingGroup(
            embedded=torch.cat([self.embed([*ids, *[FILLER] * filling]) for ids in tokens]),
            owner=torch.arange(len(tokens), device=where).repeat_interleave(sizes),
            step=torch.cat([torch.arange(n, device=where) for n in sizes.tolist()]),
            ends=sizes.cumsum(0) - 1 - filling,
            longest=max(len(ids) for ids in tokens),
        )


def _parts(tokens: list[list[int]], at_once: int) -> list[list[list[int]]]:
    """Split the classes, in order, into parts of at most `at_once` tokens.

    A class with more tokens is a part of its own.
    """
    parts: list[list[list[int]]] = [[]]
    for ids in tokens:
        if parts[-1] and sum(map(len, parts[-1])) + len(ids) > at_once:
            parts.append([])
        parts[-1].append(ids)
    return parts


@lru_cache(maxsize=256)
def _mask(group: _EndingGroup, prefix: int) -> Tensor:
    """Return the mask [S, S] of SOS, context and endings: 0 if a row sees a column, else -inf."""
    owner = F.pad(group.owner, (prefix, 0), value=-1)  # [S]; -1: the prefix, which all share
    order = torch.arange(len(owner), device=owner.device)
    sees = (order <= order[:, None]) & ((owner == -1) | (owner == owner[:, None]))
    return torch.zeros(sees.shape, device=owner.device).masked_fill(~sees, -inf)
