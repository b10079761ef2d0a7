"""Contexts of CLIP's text prompts."""

import torch
from torch import Tensor

from fedloom.engine.task import Task


def first_context(task: Task, length: int, words: str, generator: torch.Generator) -> Tensor:
    """Where a context [L, d] starts: N(0, 0.02), its first tokens at embedded words if given."""
    context = task.backbone.context(length, generator)
    if words:
        known = task.backbone.words(words)[:length]
        context = torch.cat([known, context[len(known) :]])
    return context
