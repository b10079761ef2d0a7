"""The gating network: an image's feature attends to the experts' features of every class."""

from functools import partial

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .options import Options

Task = fl.CLIPTask[Options]

LAYERS = ("q", "k", "v", "out")


def pooled(task: Task, features: Tensor) -> Tensor:
    """Return evenly spaced entries [..., g] of features [..., d]."""
    return features[..., :: max(1, features.shape[-1] // task.options.gate_width)]


def init_gate(task: Task, width: int) -> Tree:
    """Draw the layers of a gating network that reads g = `width` entries, alike for all clients.

    Returns:
        weight [g, g] and bias [g] of each layer, from U(-1, 1) / sqrt(g), as torch draws them.

    Raises:
        FedLoomError: the heads do not divide g.
    """
    if width % task.options.heads:
        raise fl.FedLoomError(
            f"pfedmoap: options.heads: {task.options.heads} does not divide the {width} entries of "
            "a feature that the gating network reads (options.gate_width)"
        )
    generator = task.generator("gate")
    draw = partial(fl.init_linear, width, generator=generator, device=task.backbone.device)
    return {name: {"weight": draw(width, width), "bias": draw(width)} for name in LAYERS}


def mix(task: Task, gate: Tree, images: Tensor, experts: Tensor, present: Tensor) -> Tensor:
    """Return the mixed feature [K, B, C, g] of every class for every image.

    Args:
        gate: layers of the clients' gating networks, [K, ...].
        images: pooled features of the images [K, B, g].
        experts: pooled features of the classes under each of E prompts [K, E, C, g].
        present: which experts there are [K, E].
    """
    heads = task.options.heads

    def project(name: str, x: Tensor) -> Tensor:  # [K, ..., g] to [K, ..., heads, g / heads]
        return fl.apply_linear(x, gate[name]).unflatten(-1, (heads, -1))

    q = project("q", images)
    k = project("k", experts)
    v = project("v", experts)
    scores = task.options.scale * torch.einsum("kbhd,kechd->kbhce", q, k)
    weights = scores.masked_fill(~present[:, None, None, None], float("-inf")).softmax(-1)
    mixed = torch.einsum("kbhce,kechd->kbchd", weights, v).flatten(-2)  # [K, B, C, g]
    return fl.apply_linear(mixed, gate["out"])
