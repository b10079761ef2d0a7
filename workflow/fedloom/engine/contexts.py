"""Contexts of CLIP's text prompts."""

import torch
from torch import Tensor

from fedloom.engine.task import Task
from fedloom.errors import FedLoomError


def check_room(task: Task, length: int) -> None:
    """Hold a context of so many tokens to what the text tower takes.

    Raises:
        FedLoomError: a class without a name, or the context does not fit before their names.
    """
    room = task.backbone.room(task.data.classes)
    if length > room:
        raise FedLoomError(
            f"{task.method}: a context of {length} tokens, but the text tower holds {room} before "
            "the longest class name; lower the option that says how many"
        )


def first_context(task: Task, length: int, words: str, generator: torch.Generator) -> Tensor:
    """Where a context [L, d] starts: N(0, 0.02), its first tokens at embedded words if given.

    Raises:
        FedLoomError: as `check_room`, or the context is shorter than the words.
    """
    check_room(task, length)
    context = task.backbone.context(length, generator)
    if words:
        known = task.backbone.words(words)
        if len(known) > length:
            raise FedLoomError(
                f"{task.method}: option words '{words}' are {len(known)} tokens, and a context has "
                f"{length}; shorten the words"
            )
        context = torch.cat([known, context[len(known) :]])
    return context
