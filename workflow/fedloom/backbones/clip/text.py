"""The text tower of an open_clip model, for learned contexts in front of class names.

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
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones import blocks
from fedloom.backbones.blocks import EVERY, Inserts
from fedloom.backbones.client_layers import Weights, apply_layer, select_weights
from fedloom.common.errors import FedLoomError
from fedloom.machine.device import arithmetic

# The largest number of tokens of the endings that share a sequence. The cost of attention grows
# with the square of this number, and every further sequence costs the context again. Counted in
# multiplications, this value is within an eighth of the best one at widths 64 and 512.
TOKENS_AT_ONCE = 192

# The number of bytes that the sequences of all classes may keep for the backward pass, by the kind
# of device. What does not fit is computed again in the backward pass. A frozen block keeps about 12
# floats for each float of a token.
KEPT_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}
KEPT_IN_A_BLOCK = 12

BLOCKS_PREFIX = "transformer.resblocks."
# the token with which CLIP's tokenizer fills up a text to the full length
FILLER = 0


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


class Inside(NamedTuple):
    """Weights and inserts of K clients with n `contexts` each (see `fedloom.backbones.blocks`)."""

    weights: Weights
    inserts: Inserts | None
    contexts: int
    gradient_checkpointing: bool


class TextTower:
    """Compute text features of contexts in front of class names.

    A sequence has at most `places` tokens, including SOS and EOT.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        name: str,
        precision: str,
        tokens_at_once: int = TOKENS_AT_ONCE,
    ):
        """Take the text tower of `model`, a CLIP or a CustomTextCLIP (which keeps it in `.text`).

        Raises:
            FedLoomError: the tower is not open_clip's own causal one, or is not read at the EOT.
        """
        text: Any = getattr(model, "text", model)
        if not _readable(text, tokenizer):
            raise FedLoomError(
                f"backbone {name}: its text tower cannot be read; use a model with open_clip's own "
                "causal one, read at the EOT of CLIP's tokenizer"
            )

        self._name = name
        self._text = text
        self._tokenizer = tokenizer
        self._precision = precision
        self._tokens_at_once = tokens_at_once
        self._groups = dict[tuple, list[_EndingGroup]]()

        # sizes, and the token that every text starts with
        self.depth = len(text.transformer.resblocks)
        self.places, self.width = text.positional_embedding.shape
        self._start = self.embed([tokenizer.sot_token_id])  # [1, d]

    def ids(self, text: str) -> list[int]:
        """Return the tokens of `text`, without SOS and EOT."""
        return self._tokenizer.encode(text)

    def embed(self, ids: list[int]) -> Tensor:
        """Return the embeddings [n, d] of n tokens, without positions."""
        where = self._text.token_embedding.weight.device
        return self._text.token_embedding(torch.tensor(ids, dtype=torch.int64, device=where))

    def max_context_length(self, endings: Sequence[str]) -> int:
        """Return the largest number of tokens of a context that all `endings` fit behind."""
        return self.places - 1 - max(group.longest for group in self._grouped(endings))

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
        """Return features [N, C, d_joint] of N contexts in front of C endings, not normalised.

        Args:
            context: [N, L, d].
            length, eot_offset: int64 [N], see `FrozenCLIP.text_features`.
            own: the clients' weights and inserts, if there are any.

        Raises:
            FedLoomError: the longest text has more tokens than the tower has places.
        """
        filling, longest = _longest_context(context, length, eot_offset)
        self._require_places(longest, endings)

        # go through the groups; those that do not fit into memory are computed again in the
        # backward pass
        parts = []
        left = KEPT_BYTES[context.device.type]
        for group in self._grouped(endings, filling):
            run = partial(
                self._run_group, group=group, length=length, eot_offset=eot_offset, own=own
            )

            # the bytes that this group would keep for the backward pass
            tokens = len(context) * (1 + context.shape[1] + len(group.step))
            left -= 4 * tokens * self.width * self.depth * KEPT_IN_A_BLOCK
            parts.append(blocks.run_with_checkpointing(run, context, wanted=left < 0))

        return self._project(torch.cat(parts, 1), own)

    def _require_places(self, context_length: int, endings: Sequence[str]) -> None:
        """Raise a FedLoomError if the longest text has more tokens than the tower has places.

        `context_length` is the number of tokens of the longest context.
        """
        tokens = context_length + self.places - self.max_context_length(endings)
        if tokens > self.places:
            raise FedLoomError(
                f"backbone {self._name}: the longest text, with a context of {context_length} "
                f"tokens, has {tokens} tokens, but the text tower has {self.places} places; "
                "shorten the context, the template or the class's name"
            )

    def _project(self, states: Tensor, own: Inside | None) -> Tensor:
        """Return the features [N, C, d_joint] of the last block's output [N, C, d]."""
        # the last norm, under the clients' weights if there are any
        weights: Weights = {}
        if own:
            weights = own.weights
            states = states.unflatten(0, (-1, own.contexts))  # [K, n, C, d]
        states = apply_layer(self._text.ln_final, states, select_weights(weights, "ln_final."))

        # the projection may be a linear layer, a matrix, or missing
        projection = self._text.text_projection
        if isinstance(projection, nn.Linear):
            states = apply_layer(projection, states, select_weights(weights, "text_projection."))
        elif "text_projection" in weights:
            states = states @ weights["text_projection"][:, None]  # [K, 1, d, d_joint]
        elif projection is not None:
            states = states @ projection
        return states.flatten(0, -3)

    def _blocks(self, x: Tensor, mask: Tensor, own: Inside | None, read: blocks.Read) -> Tensor:
        """Return the last block's output [N, R, d] at the tokens `read`, of sequences [N, S, d]."""
        tower = self._text.transformer.resblocks

        # with clients' weights and inserts
        if own:
            x = x.unflatten(0, (-1, own.contexts))
            weights = select_weights(own.weights, BLOCKS_PREFIX)
            more = (own.inserts, mask, own.gradient_checkpointing, read)
            return blocks.run_blocks(tower, x, weights, *more).flatten(0, 1)

        # frozen; only the last block can leave out tokens that are not read
        *earlier, last = tower
        for block in earlier:
            x = blocks.read_block(block, x, blocks.EVERY, mask)
        return blocks.read_block(last, x, read, mask)

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
            x = self._blocks(x, mask, own, ends)  # [N, C, d], with eot_offset [N, S, d]
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


def _readable(text: Any, tokenizer: Any) -> bool:
    """Return True if a tower is open_clip's own causal one, read at the EOT of CLIP's tokenizer."""
    eot = getattr(tokenizer, "eot_token_id", None)
    if not hasattr(getattr(text, "transformer", None), "resblocks") or eot is None:
        return False
    if text.attn_mask is None or getattr(text, "cls_emb", None) is not None:
        return False

    # the attributes differ between a CLIP and a CustomTextCLIP
    pool = getattr(text, "text_pool_type", None) or text.pool_type
    if hasattr(text, "text_eos_id"):
        end = text.text_eos_id
    else:
        end = text.eos_id
    return pool == "argmax" or (pool == "eos" and end == eot)


def _longest_context(
    context: Tensor, length: Tensor | None, eot_offset: Tensor | None
) -> tuple[int, int]:
    """Return how far behind its EOT a text is read at most, and the longest context with this.

    The arguments are those of `TextTower.__call__`. Both results are numbers of tokens.
    """
    longest = context.shape[1]
    if eot_offset is None:
        return 0, longest
    if length is None:
        length = torch.full_like(eot_offset, longest)
    most = torch.stack([eot_offset, length + eot_offset]).amax(1)
    # the one wait for the device
    filling, last = most.tolist()
    return filling, max(longest, last)


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
