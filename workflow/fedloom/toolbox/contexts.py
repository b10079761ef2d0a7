"""Learned contexts of CLIP's text prompts: their lengths, and their values before training."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.federated.task import Task


def check_lengths(task: Task, lengths: Sequence[int], words: str) -> None:
    """Check that contexts of these `lengths` (in tokens) fit into the text tower and hold `words`.

    Raises:
        FedLoomError: the longest context leaves no room for the longest class name, or the shortest
            has fewer tokens than `words`.
    """
    # the longest context must leave room for the longest class name
    limit = task.backbone.max_context_length(task.data.classes)
    if max(lengths) > limit:
        raise FedLoomError(
            f"{task.method}: a context of {max(lengths)} tokens, but the text tower holds {limit} "
            "before the longest class name; lower options.length, or what else counts its tokens"
        )

    # the shortest context must hold the words
    tokens = 0
    if words:
        tokens = len(task.backbone.embed_text(words))
    if min(lengths) < tokens:
        raise FedLoomError(
            f"{task.method}: option words '{words}' is {tokens} tokens, but a context has only "
            f"{min(lengths)}; use fewer words"
        )


def init_context(task: Task, length: int, words: str, generator: torch.Generator) -> Tensor:
    """Draw a context [L, d] of `length` tokens from N(0, 0.02²).

    The embedded `words` replace its first tokens.

    Raises:
        FedLoomError: see `check_lengths`.
    """
    check_lengths(task, [length], words)
    context = task.backbone.init_context(length, generator)  # [L, d]
    if words:
        embedded = task.backbone.embed_text(words)  # [tokens of the words, d]
        context = torch.cat([embedded, context[len(embedded) :]])
    return context
