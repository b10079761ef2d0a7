"""The text tower of an open_clip model: learned contexts in front of class names, packed.

A prompt is [SOS, context, ending, EOT]; the ending of a class is its name and a full stop.
Open_clip computes 77 positions for each class. Here positions behind an EOT are left out, since
nothing before them sees them in a causal tower, and what all classes share, [SOS, context], is
computed once. The classes of a context make one sequence,

    SOS context | ending of class 1, EOT | ending of class 2, EOT | ...

under a mask by which an ending sees [SOS, context] and itself alone, with the position embeddings
that it would have right behind the context. The last block computes the output of EOTs alone. A
context may be shorter than the longest of its batch: the ending then follows it directly, and
nothing sees the padding between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones.blocks import (
    EVERY,
    Inserts,
    Read,
    Weights,
    below,
    layer,
    read_block,
    recomputed,
    run_blocks,
)
from fedloom.common.device import arithmetic
from fedloom.common.errors import FedLoomError

# Endings that share a sequence, in tokens: attention costs their square, a sequence more costs the
# context again. By count of multiplications, behind 16 tokens, this is within an eighth of the best
# at widths 64 and 512.
TOKENS_AT_ONCE = 192

# Bytes that the sequences of all classes may keep for the backward pass, by the kind of device: the
# rest is computed again there. A frozen block keeps about 12 floats for each of a token's.
KEPT_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}
KEPT_IN_A_BLOCK = 12

FILLER = 0  # the token with which CLIP's tokenizer fills a text up to all places


@dataclass(frozen=True, eq=False)
class Group:
    """The endings of some classes, one behind the other: Q tokens, what fills them up included.

    Attributes:
        embedded: [Q, d], without position embeddings.
        owner: int64 [Q], the class that a token belongs to.
        step: int64 [Q], the position of a token behind the context, from 0.
        ends: int64 [C], which token is the EOT of each class.
        longest: number of tokens of the longest ending, its EOT included.
    """

    embedded: Tensor
    owner: Tensor
    step: Tensor
    ends: Tensor
    longest: int


@dataclass(frozen=True, eq=False)
class Inside:
    """Weights and inserts of K clients inside the tower (see `fedloom.backbones.blocks`).

    Inserts are given tokens [K, n, S, d] of n `contexts` per client; SOS and context come first.
    """

    weights: Weights
    inserts: Inserts | None
    contexts: int
    gradient_checkpointing: bool = False


class TextTower:
    """Text features of frozen weights, with a gradient to the contexts.

    Attributes:
        width: d, the width of a context's tokens.
        depth: number of blocks.
        places: number of tokens that a sequence may have, SOS and EOT included.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, name: str, precision: str = "float32"):
        """Take the tower of `model`, a CLIP or a CustomTextCLIP (which keeps it in `.text`)."""
        text: Any = getattr(model, "text", model)
        why = _unfit(text, tokenizer)
        if why:
            raise FedLoomError(f"backbone {name}: its text tower {why}; use another model")
        self._name, self._text, self._tokenizer = name, text, tokenizer
        self._precision = precision
        self._heads: int = text.transformer.resblocks[0].attn.num_heads
        self._groups: dict[tuple, list[Group]] = {}
        self.depth = len(text.transformer.resblocks)
        self.places: int = text.positional_embedding.shape[0]
        self.width: int = text.positional_embedding.shape[1]

    def ids(self, text: str) -> list[int]:
        """Return the tokens of `text`, without SOS and EOT."""
        return self._tokenizer.encode(text)

    def embed(self, ids: list[int]) -> Tensor:
        """Return the embeddings [n, d] of n tokens, without positions."""
        where = self._text.token_embedding.weight.device
        return self._text.token_embedding(torch.tensor(ids, dtype=torch.int64, device=where))

    @cached_property
    def _start(self) -> Tensor:
        """The embedded SOS [1, d]."""
        return self.embed([self._tokenizer.sot_token_id])

    def max_context_length(self, endings: Sequence[str]) -> int:
        """Return how many tokens a context may have that all `endings` fit behind."""
        return self.places - 1 - max(group.longest for group in self._grouped(endings))

    def floats(self, endings: Sequence[str]) -> int:
        """Return the size of all `endings`, of S tokens, at the inputs of all blocks: S d depth."""
        return self.depth * sum(group.embedded.numel() for group in self._grouped(endings))

    def __call__(
        self,
        context: Tensor,
        endings: Sequence[str],
        length: Tensor | None = None,
        eot_offset: Tensor | None = None,
        own: Inside | None = None,
    ) -> Tensor:
        """Return features [N, C, d_joint], not normalised, of contexts [N, L, d] before C endings.

        `length` and `eot_offset` are int64 [N], see `FrozenCLIP.text_features`; `own` has weights
        and inserts of the N / n clients that have n contexts each.
        """
        room = self.max_context_length(endings)
        if room < 0 and not context.shape[1]:
            raise FedLoomError(
                f"backbone {self._name}: the longest text has {self.places - room} tokens, but the "
                f"text tower holds {self.places}; shorten the template or the class's name"
            )
        filling, longest = 0, context.shape[1]
        if eot_offset is not None:
            counted = torch.full_like(eot_offset, longest) if length is None else length
            most = torch.stack([eot_offset, counted + eot_offset]).amax(1)
            filling, last = most.tolist()  # the one wait for the device
            longest = max(longest, last)
        if longest > room:
            raise FedLoomError(
                f"backbone {self._name}: a context of {longest} tokens and the longest "
                f"class name do not fit into the {self.places} places of its text tower; at most "
                f"{room} tokens"
            )
        parts, left = [], KEPT_BYTES[context.device.type]
        for group in self._grouped(endings, filling):
            run = partial(self._run, group=group, length=length, eot_offset=eot_offset, own=own)
            tokens = len(context) * (1 + context.shape[1] + len(group.step))
            left -= 4 * tokens * self.width * self.depth * KEPT_IN_A_BLOCK
            parts.append(recomputed(run, context, wanted=left < 0))
        states = torch.cat(parts, 1)
        weights = {} if own is None else own.weights
        states = self._by_client(states, own)  # [N, C, d] or [K, n, C, d]
        states = layer(self._text.ln_final, states, below(weights, "ln_final."))
        projection = self._text.text_projection
        if isinstance(projection, nn.Linear):
            states = layer(projection, states, below(weights, "text_projection."))
            return states.flatten(0, -3)
        if "text_projection" in weights:
            projection = weights["text_projection"][:, None]  # [K, 1, d, d_joint]
        return (states if projection is None else states @ projection).flatten(0, -3)

    @staticmethod
    def _by_client(states: Tensor, own: Inside | None) -> Tensor:
        """Return [N, ...] as [K, n, ...] if clients have separate weights or inserts."""
        return states if own is None else states.unflatten(0, (-1, own.contexts))

    def _blocks(self, x: Tensor, mask: Tensor, own: Inside | None, read: Read) -> Tensor:
        """Return states [N, R, d] of sequences [N, S, d] under a mask [S, S] or [N heads, S, S].

        Of the last block, only the R tokens that are read.
        """
        if own is None:
            *earlier, last = self._text.transformer.resblocks
            for block in earlier:
                x = read_block(block, x, EVERY, mask)
            return read_block(last, x, read, mask)
        if mask.dim() == 3:
            mask = mask.unflatten(0, (len(x), -1))  # [N, heads, S, S]
        blocks = self._text.transformer.resblocks
        weights = below(own.weights, "transformer.resblocks.")
        x = self._by_client(x, own)
        return run_blocks(
            blocks, x, weights, own.inserts, mask, own.gradient_checkpointing, read
        ).flatten(0, 1)

    def _run(
        self,
        context: Tensor,
        group: Group,
        length: Tensor | None,
        eot_offset: Tensor | None,
        own: Inside | None,
    ) -> Tensor:
        """Return the states [N, C, d] after the last block, where a group's classes are read."""
        count, prefix = len(context), 1 + context.shape[1]
        start = self._start.expand(count, 1, -1)  # [N, 1, d]
        ending = group.embedded.expand(count, -1, -1)  # [N, Q, d]
        embedding = self._text.positional_embedding  # [places, d]
        mask = _mask(group, prefix)  # [S, S], S = prefix + Q
        if length is None:
            position = prefix + group.step  # [Q]
        else:
            position = 1 + length[:, None] + group.step  # [N, Q]
            mask = _hide_padding(mask, prefix, length).repeat_interleave(self._heads, 0)
        if eot_offset is not None:
            cut = position >= self.places - eot_offset[:, None]  # [N, Q]
            ending = ending.masked_fill(cut[..., None], 0)
        # no feature is read behind the tower's last place
        position = embedding[position.clamp(max=self.places - 1)]  # [Q, d] or [N, Q, d]
        x = torch.cat([torch.cat([start, context], 1) + embedding[:prefix], ending + position], 1)
        ends = EVERY if eot_offset is not None else prefix + group.ends  # [C]
        with arithmetic(self._precision, x.device):
            x = self._blocks(x, mask, own, ends)  # [N, C, d], with eot_offset [N, S, d]
        if eot_offset is None:
            return x
        read = prefix + group.ends + eot_offset[:, None]  # [N, C]
        return x.gather(1, read[..., None].expand(-1, -1, x.shape[-1]))

    def _grouped(self, endings: Sequence[str], filling: int = 0) -> list[Group]:
        """Return the groups of `endings`, with `filling` tokens behind each EOT, made once."""
        key = (*endings, filling)
        if key not in self._groups:
            tokens = [[*self.ids(text), self._tokenizer.eot_token_id] for text in endings]
            self._groups[key] = [self._group(part, filling) for part in _parts(tokens)]
        return self._groups[key]

    def _group(self, tokens: list[list[int]], filling: int) -> Group:
        """Return the group of endings of these tokens, with `filling` tokens behind each EOT."""
        where = self._text.positional_embedding.device
        sizes = torch.tensor([len(ids) + filling for ids in tokens], device=where)  # [C]
        return Group(
            embedded=torch.cat([self.embed([*ids, *[FILLER] * filling]) for ids in tokens]),
            owner=torch.arange(len(tokens), device=where).repeat_interleave(sizes),
            step=torch.cat([torch.arange(n, device=where) for n in sizes.tolist()]),
            ends=sizes.cumsum(0) - 1 - filling,
            longest=max(len(ids) for ids in tokens),
        )


def _unfit(text: Any, tokenizer: Any) -> str:
    """Return why a text tower cannot be used, or an empty string if it can."""
    if not hasattr(getattr(text, "transformer", None), "resblocks"):
        return f"is a {type(text).__name__}, not open_clip's own"
    if text.attn_mask is None:
        return "is not causal"
    if getattr(text, "cls_emb", None) is not None:
        return "is read at a class token, not at the EOT"
    if not hasattr(tokenizer, "eot_token_id"):
        return f"needs a {type(tokenizer).__name__}, not CLIP's own tokenizer"
    pool = getattr(text, "text_pool_type", None) or text.pool_type
    end = text.text_eos_id if hasattr(text, "text_eos_id") else text.eos_id
    if pool != "argmax" and not (pool == "eos" and end == tokenizer.eot_token_id):
        return f"pools by '{pool}', not at the EOT"
    return ""


def _parts(tokens: list[list[int]]) -> list[list[list[int]]]:
    """Cut the classes into runs of at most TOKENS_AT_ONCE tokens; a longer class is its own."""
    parts: list[list[list[int]]] = []
    total = 0
    for ids in tokens:
        if not parts or total + len(ids) > TOKENS_AT_ONCE:
            parts.append([])
            total = 0
        parts[-1].append(ids)
        total += len(ids)
    return parts


@lru_cache(maxsize=256)
def _mask(group: Group, prefix: int) -> Tensor:
    """Return the additive mask [S, S] of `prefix` tokens (SOS and the context) and endings.

    It is 0 where a row sees a column, else -inf.
    """
    owner = F.pad(group.owner, (prefix, 0), value=-1)  # [S]; -1: the prefix, which all share
    order = torch.arange(len(owner), device=owner.device)
    sees = (order <= order[:, None]) & ((owner == -1) | (owner == owner[:, None]))
    return torch.zeros(sees.shape, device=owner.device).masked_fill(~sees, float("-inf"))


def _hide_padding(mask: Tensor, prefix: int, length: Tensor) -> Tensor:
    """Return the masks [N, S, S] of contexts of `length` [N] tokens: nothing sees their padding.

    Every row still sees SOS, so that none is empty; `prefix` counts SOS and the padded context.
    """
    order = torch.arange(mask.shape[1], device=mask.device)
    padding = (order < prefix) & (order > length[:, None])  # [N, S]
    hidden = torch.zeros(padding.shape, device=mask.device).masked_fill(padding, float("-inf"))
    return mask + hidden.unsqueeze(1)
