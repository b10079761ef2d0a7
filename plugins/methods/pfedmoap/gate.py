"""The gating network: an image's feature attends to the experts' features of every class."""

from functools import partial

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .options import Options

Task = fl.CLIPTask[Options]

LAYERS = ("q", "k", "v", "out")


def pool_entries(task: Task, features: Tensor) -> Tensor:
    """Return g evenly spaced entries [..., g] of features [..., d]."""
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
    """Return h_c(x) [K, B, C, g], the mixed feature of each class c for each image x.

    It is out(sum_e w_e v(t_e,c)) with the weights w = softmax_e(scale * q(x) . k(t_e,c)), for each
    head on its part of the entries.

    Args:
        gate: the layers q, k, v and out of the clients' gating networks, {name: [K, ...]}.
        images: pooled features x of the images [K, B, g].
        experts: pooled text features t_e,c of the classes under each of E prompts [K, E, C, g].
        present: bool [K, E], which experts there are; the others have the weight 0.
    """
    heads = task.options.heads

    def project(name: str, x: Tensor) -> Tensor:
        """Return a layer's outputs [K, ..., heads, g / heads] for inputs [K, ..., g]."""
        return fl.apply_linear(x, gate[name]).unflatten(-1, (heads, -1))

    q = project("q", images)
    k = project("k", experts)
    v = project("v", experts)
    scores = task.options.scale * torch.einsum("kbhd,kechd->kbhce", q, k)
    weights = scores.masked_fill(~present[:, None, None, None], float("-inf")).softmax(-1)
    mixed = torch.einsum("kbhce,kechd->kbchd", weights, v).flatten(-2)  # [K, B, C, g]
    return fl.apply_linear(mixed, gate["out"])
