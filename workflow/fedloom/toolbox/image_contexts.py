"""Classify images with texts whose context depends on the image, in parts that fit into memory.

A context stands in front of every class name, so B images need B x C texts.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedloom.federated.task import CLIPTask


def split_images(task: CLIPTask, values: Tensor) -> tuple[Tensor, ...]:
    """Split values [K, B, ...] of images into parts [K, b, ...] that are encoded at once."""
    # the number of texts for one image of each client
    prompts = len(values) * len(task.data.classes)
    return values.split(max(1, task.limits.prompts // prompts), 1)


def contextual_logits(task: CLIPTask, features: Tensor, contexts: Iterable[Tensor]) -> Tensor:
    """Compute logits [K, B, C] of images, each with a context of its own.

    Args:
        features: features of the images [K, B, d'].
        contexts: for each part of `split_images`, the contexts [K, b, L, d] of its images.
    """
    clip = task.backbone
    parts = list[Tensor]()
    for images, own in zip(split_images(task, features), contexts, strict=True):
        texts = clip.text_features(own, task.data.classes)  # [K, b, C, d']
        parts.append(clip.logits(images[:, :, None], texts)[:, :, 0])  # [K, b, C]
    return torch.cat(parts, 1)
