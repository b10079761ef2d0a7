"""The base class of the text towers of open_clip models.

The modules `text` and `whole_texts` have the two kinds of text towers: those with a causal mask,
and those without any mask.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.backbones import blocks
from fedloom.backbones.blocks import Inserts
from fedloom.backbones.client_layers import Weights, apply_layer, select_weights
from fedloom.common.errors import FedLoomError

# The number of bytes that the sequences of all classes may keep for the backward pass, by the kind
# of device. What does not fit is computed again in the backward pass. A frozen block keeps about 12
# floats for each float of a token.
KEPT_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}
KEPT_IN_A_BLOCK = 12

BLOCKS_PREFIX = "transformer.resblocks."
# the token with which CLIP's tokenizer fills up a text to the full length
FILLER = 0


class Inside(NamedTuple):
    """Weights and inserts of K clients with n `contexts` each (see `fedloom.backbones.blocks`)."""

    weights: Weights
    inserts: Inserts | None
    contexts: int
    gradient_checkpointing: bool


class TextTower:
    """Compute text features of contexts in front of class names.

    A text has at most `places` tokens, including those at its begin and its end.

    Attributes:
        start: the tokens that every text starts with: SOS, or none.
        places_per_class: how many tokens the tower computes of each class, whatever its name; 0 if
            that depends on the name.
    """

    places_per_class = 0

    def __init__(self, model: nn.Module, tokenizer: Any, name: str, precision: str):
        """Take the text tower of `model`, which a CustomTextCLIP keeps in `.text`."""
        text: Any = getattr(model, "text", model)
        self._name = name
        self._text = text
        self._tokenizer = tokenizer
        self._precision = precision

        # sizes, and the tokens that every text starts with
        self.depth = len(text.transformer.resblocks)
        self.places, self.width = text.positional_embedding.shape
        self.start: list[int] = []
        if tokenizer.sot_token_id is not None:
            self.start = [tokenizer.sot_token_id]

    def ids(self, text: str) -> list[int]:
        """Return the tokens of `text`, without SOS and EOT."""
        return self._tokenizer.encode(text)

    def embed(self, ids: list[int]) -> Tensor:
        """Return the embeddings [n, d] of n tokens, without positions."""
        where = self._text.token_embedding.weight.device
        return self._text.token_embedding(torch.tensor(ids, dtype=torch.int64, device=where))

    def longest(self, endings: Sequence[str]) -> int:
        """Return the number of tokens of the longest ending, including its EOT."""
        raise NotImplementedError

    def floats(self, endings: Sequence[str]) -> int:
        """Return S d depth, the floats of all endings (S tokens) at the inputs of all blocks."""
        raise NotImplementedError

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
            endings: what follows the context; one that begins with a space is the rest of a text.
            length, eot_offset: int64 [N], see `FrozenCLIP.text_features`.
            own: the clients' weights and inserts, if there are any.

        Raises:
            FedLoomError: the longest text has more tokens than the tower has places.
        """
        raise NotImplementedError

    def max_context_length(self, endings: Sequence[str]) -> int:
        """Return the largest number of tokens of a context that all `endings` fit behind."""
        return self.places - len(self.start) - self.longest(endings)

    def run_parts(
        self, context: Tensor, parts: Iterable[tuple[Callable[[Tensor], Tensor], int]]
    ) -> Tensor:
        """Return the last block's output [N, C, d], which is computed for some classes at a time.

        What does not fit into memory is computed again in the backward pass.

        Args:
            context: [N, L, d].
            parts: for each part of the classes, the function that returns its output for the
                context, and the number of tokens that each of the N contexts has in it.
        """
        outputs = list[Tensor]()
        left = KEPT_BYTES[context.device.type]
        for run, tokens in parts:
            # the bytes that this part would keep for the backward pass
            floats = len(context) * tokens * self.width * self.depth * KEPT_IN_A_BLOCK
            left -= 4 * floats
            outputs.append(blocks.run_with_checkpointing(run, context, wanted=left < 0))
        return torch.cat(outputs, 1)

    def require_places(self, context_length: int, endings: Sequence[str]) -> None:
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

    def project(self, states: Tensor, own: Inside | None) -> Tensor:
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

    def run_blocks(
        self, x: Tensor, mask: Tensor | None, own: Inside | None, read: blocks.Read
    ) -> Tensor:
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


def longest_context(
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
