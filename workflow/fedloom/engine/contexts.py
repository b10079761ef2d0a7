"""Contexts of CLIP's text prompts."""

import torch
from torch import Tensor

from fedloom.engine.task import Task
from fedloom.errors import FedLoomError


def first_context(task: Task, length: int, words: str, generator: torch.Generator) -> Tensor:
    """Where a context [L, d] starts: N(0, 0.02), its first tokens at embedded words if given.

    Raises:
        FedLoomError: a class without a name, or a context that does not fit before their names.
    """
    room = task.backbone.room(task.data.classes)
    if length > room:
        raise FedLoomError(
            f"{task.method}: a context of {length} tokens, but the text tower holds {room} before "
            "the longest class name; lower it (options.length, or what else counts its tokens)"
        )
    context = task.backbone.context(length, generator)
    if words:
        known = task.backbone.words(words)[:length]
        context = torch.cat([known, context[len(known) :]])
    return context
