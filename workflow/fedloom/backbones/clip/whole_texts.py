"""Text towers of open_clip without a mask, for learned contexts in front of class names.

Here all tokens of a text see each other, also those that fill it up to the full length, as in
MobileCLIP and SigLIP. So each class takes a whole text of each context, with as many tokens as the
tower has places:

    MobileCLIP    SOS, context, ending, EOT, token 0 ...        read at the EOT
    SigLIP        context, ending, EOS, filler ...              read at the last place

Each token gets the embedding of its position, and after that the tower does not see any order. So
this module computes the tokens in another one, which is the same for both:

    the token that is read | context | all other tokens

The last block can then leave out all tokens but the first, and an insert finds the context behind
the first token, as in the towers of `text`. A context may be shorter than the longest of its batch.
Then the tokens that are too many are hidden from all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.backbones.clip.text_tower import FILLER, Inside, TextTower, longest_context
from fedloom.machine.device import arithmetic

# the number of classes that are computed at once
CLASSES_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class _Endings:
    """The endings of C classes, filled up to all places S of the tower."""

    # the tokens behind the context, int64 [C, S]
    ids: Tensor
    # the place of the EOT behind the context, from 0, int64 [C]
    ends: Tensor
    # the number of tokens of the longest ending, including its EOT
    longest: int

    def split(self, classes: int) -> list["_Endings"]:
        """Return the endings in parts of some `classes` each."""
        pairs = zip(self.ids.split(classes), self.ends.split(classes), strict=True)
        return [_Endings(ids, ends, self.longest) for ids, ends in pairs]


class _Places(NamedTuple):
    """Which place of a text each computed token stands at, apart from those of the context.

    The first axis n is N, or 1 if all contexts have the same places.
    """

    # the place of each token, the one that is read first, int64 [n, C, 1 + R]
    place: Tensor
    # True if a token is too many, bool [n, C, 1 + R]
    hidden: Tensor
    # the number of tokens of each context, and how far behind the EOT it is read, int64 [n]
    length: Tensor
    offset: Tensor


class WholeTexts(TextTower):
    """Compute text features in a tower without a mask.

    Attributes:
        reads_last: True if a text is read at the last place, and False if at its EOT.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any, name: str, precision: str, reads_last: bool
    ):
        """Take the text tower of `model`."""
        super().__init__(model, tokenizer, name, precision)
        self.reads_last = reads_last
        self.places_per_class = self.places
        self._known = dict[tuple[str, ...], _Endings]()

    def longest(self, endings: Sequence[str]) -> int:
        """Return the number of tokens of the longest ending, including its EOT."""
        return self._tokens(endings).longest

    def floats(self, endings: Sequence[str]) -> int:
        """Return C S d depth, the floats of C whole texts at the inputs of all blocks."""
        return len(endings) * self.places * self.width * self.depth

    def __call__(
        self,
        context: Tensor,
        endings: Sequence[str],
        length: Tensor | None = None,
        eot_offset: Tensor | None = None,
        own: Inside | None = None,
    ) -> Tensor:
        """Return features [N, C, d_joint], see `TextTower.__call__`."""
        _, longest = longest_context(context, length, eot_offset)
        self.require_places(longest, endings)

        # each class has a sequence of all places
        parts = []
        for part in self._tokens(endings).split(CLASSES_AT_ONCE):
            run = partial(self._run, part=part, length=length, eot_offset=eot_offset, own=own)
            parts.append((run, len(part.ends) * self.places))
        return self.project(self.run_parts(context, parts), own)

    def _run(
        self,
        context: Tensor,
        part: _Endings,
        length: Tensor | None,
        eot_offset: Tensor | None,
        own: Inside | None,
    ) -> Tensor:
        """Return the last block's output [N, C, d] at the tokens where texts of C classes are read.

        `part` has the endings of these classes.
        """
        places = self._places(part, context, length, eot_offset)
        x = self._embed_texts(context, part, places)  # [N, C, T, d]
        shape = x.shape[:2]
        mask = self._hiding_mask(context, places, length)

        # a client has a sequence for each pair of a context and a class
        if own:
            own = own._replace(contexts=own.contexts * shape[1])
        with arithmetic(self._precision, x.device):
            # cast the mask once, not in every block
            if mask is not None and torch.is_autocast_enabled(x.device.type):
                mask = mask.to(torch.get_autocast_dtype(x.device.type))
            read = self.run_blocks(x.flatten(0, 1), mask, own, slice(1))  # [N C, 1, d]
        return read[:, 0].unflatten(0, shape)

    def _places(
        self, part: _Endings, context: Tensor, length: Tensor | None, eot_offset: Tensor | None
    ) -> _Places:
        """Return the places of the tokens that do not belong to the context."""
        where = part.ends.device
        starts = len(self.start)
        own_length = torch.tensor([context.shape[1]], device=where) if length is None else length
        offset = torch.zeros_like(own_length) if eot_offset is None else eot_offset

        # the place that is read, [n, C, 1]
        if self.reads_last:
            read = torch.full((len(own_length), len(part.ends), 1), self.places - 1, device=where)
        else:
            read = (starts + own_length + offset)[:, None, None] + part.ends[:, None]

        # the other places: those of the start, and those behind the context; with contexts of
        # several lengths there is room for the shortest of all
        count = self.places - 1
        if length is None:
            count -= context.shape[1]
        order = torch.arange(count, device=where)
        others = torch.where(order < starts, order, order + own_length[:, None])[:, None]
        others = others + (others >= read)  # [n, C, R]

        place = torch.cat([read, others], -1)
        return _Places(place, place >= self.places, own_length, offset)

    def _embed_texts(self, context: Tensor, part: _Endings, places: _Places) -> Tensor:
        """Return the tokens [N, C, T, d] of texts with position embeddings, the read one first."""
        starts = len(self.start)
        positions = self._text.positional_embedding  # [places, d]
        place = places.place.clamp(max=self.places - 1)  # [n, C, 1 + R]

        # the tokens of the start and of the endings
        behind = (place - starts - places.length[:, None, None]).clamp(min=0)
        ids = part.ids.expand(len(place), -1, -1).gather(-1, behind)
        for number, token in enumerate(self.start):
            ids = ids.masked_fill(place == number, token)
        embedded = self._text.token_embedding(ids)  # [n, C, 1 + R, d]

        # embeddings at the tower's last `offset` places are zeros
        cut = place >= self.places - places.offset[:, None, None]
        zero = torch.zeros_like(embedded[:1, :1, :1])
        rest = torch.where(cut[..., None], zero, embedded) + positions[place]

        # put the context behind the token that is read
        learned = context + positions[starts : starts + context.shape[1]]  # [N, L, d]
        learned = learned.unsqueeze(1).expand(-1, len(part.ends), -1, -1)
        rest = rest.expand(len(context), -1, -1, -1)
        return torch.cat([rest[..., :1, :], learned, rest[..., 1:, :]], -2)

    def _hiding_mask(
        self, context: Tensor, places: _Places, length: Tensor | None
    ) -> Tensor | None:
        """Return a mask [N C heads, T, T] that hides what contexts of several lengths leave over.

        It is None if all contexts have one length.
        """
        if length is None:
            return None
        order = torch.arange(context.shape[1], device=context.device)
        unused = (order >= length[:, None])[:, None]  # [N, 1, L]
        unused = unused.expand(-1, places.hidden.shape[1], -1)
        hidden = torch.cat([places.hidden[..., :1], unused, places.hidden[..., 1:]], -1)

        # one row for each token that looks, [N C, T, T]
        row = (
            torch.zeros(hidden.shape, device=context.device).masked_fill(hidden, -inf).flatten(0, 1)
        )
        rows = row[:, None].expand(-1, row.shape[1], -1)
        heads = self._text.transformer.resblocks[0].attn.num_heads
        return rows.repeat_interleave(heads, 0)

    def _tokens(self, endings: Sequence[str]) -> _Endings:
        """Return the tokens of `endings`, which are made only once."""
        key = tuple(endings)
        if key not in self._known:
            tokens = [[*self.ids(text), self._tokenizer.eot_token_id] for text in endings]
            longest = max(len(ids) for ids in tokens)

            # fill them up, also one that is too long, which `require_places` names
            filler = getattr(self._tokenizer, "pad_token_id", FILLER)
            width = max(self.places, longest)
            rows = [F.pad(torch.tensor(ids), (0, width - len(ids)), value=filler) for ids in tokens]
            where = self._text.positional_embedding.device
            ends = torch.tensor([len(ids) - 1 for ids in tokens], device=where)
            self._known[key] = _Endings(torch.stack(rows).to(where), ends, longest)
        return self._known[key]
