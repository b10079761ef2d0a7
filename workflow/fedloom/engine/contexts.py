"""Contexts of CLIP's text prompts."""

import torch
from torch import Tensor

from fedloom.engine.task import Task


def first_context(task: Task, length: int, words: str, generator: torch.Generator) -> Tensor:
    """Where a context [L, d] starts: N(0, 0.02), or the embedded words, whose number is then L."""
    if words:
        return task.backbone.words(words)
    return task.backbone.context(length, generator)
