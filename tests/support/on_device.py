"""A tiny task on a device, as a run's files would give it there."""

from dataclasses import replace
from functools import lru_cache

import torch

from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.backbones.vit import FrozenViT
from fedloom.federated.task import Task, WarmStart


def on_device(
    task: Task, device: torch.device, precision: str = "float32", compiles: bool = False
) -> Task:
    """Return the task with data, backbone and prototypes on the device."""
    data = task.data
    old = task.backbone
    warm = task.warm_start
    if isinstance(old, FrozenViT):
        backbone = FrozenViT(old.model, device, precision, compile_setting=compiles)
    else:
        tokenizer = old._text._tokenizer
        backbone = FrozenCLIP(
            old.model, tokenizer, "tiny", device, precision, compile_setting=compiles
        )
    tokens = data.tokens
    patches = data.patches
    data = replace(
        data,
        device=device,
        labels=data.labels.to(device),
        priors=data.priors.to(device),
        tokens=lru_cache(lambda place: tokens(place).to(device)),
        patches=patches and lru_cache(lambda: patches().to(device)),
    )
    if warm is not None:
        warm = WarmStart(**{name: value.to(device) for name, value in vars(warm).items()})
    return replace(task, data=data, backbone=backbone, warm_start=warm)
