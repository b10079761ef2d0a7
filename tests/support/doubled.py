"""A task in float64, and timm's own model with a client's weights, for references."""

import copy

import torch
from torch import Tensor

from fedloom.federated.task import Task


def doubled(task: Task) -> Task:
    """Return the task with backbone and pixels in float64, and weights off their first values."""
    torch.manual_seed(0)
    backbone = task.backbone
    for parameter in backbone.model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    backbone.model.double()
    pixels = backbone.pixels
    backbone.pixels = lambda images: pixels(images).double()
    for name in ("init_head", "init_prompts"):
        original = getattr(backbone, name)
        setattr(backbone, name, lambda *given, original=original: original(*given).double())
    return task


def features(task: Task, pixels: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Return features [B, d] of normalised pixels by timm's own forward pass with these weights."""
    model = copy.deepcopy(task.backbone.model)
    return torch.func.functional_call(model, weights, (pixels,))


def logits(task: Task, pixels: Tensor, head: Tensor, weights: dict[str, Tensor]) -> Tensor:
    return features(task, pixels, weights) @ head.T


def images_of(task: Task, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
    """Return all of a client's images as normalised pixels, and their labels."""
    batch = task.data.batch([getattr(task.data, part)[client]])
    return task.backbone.pixels(batch.images[0]), batch.labels[0]
