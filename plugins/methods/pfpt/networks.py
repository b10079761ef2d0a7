"""The two-layer networks of g and alpha, which both variants use."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .options import Options

Task = fl.ViTTask[Options]


def init_nets(task: Task) -> Tree:
    """Draw the networks of `g` (d to 1) and `alpha` (d to d), before their output functions."""
    width = task.backbone.width
    hidden = task.options.hidden
    outputs = {"g": 1, "alpha": width}
    return {name: init_layers(task, name, width, hidden, n) for name, n in outputs.items()}


def init_layers(task: Task, purpose: str, inputs: int, hidden: int, outputs: int) -> Tree:
    """Draw two layers, `inner` and `outer`, as torch.nn.Linear draws its weight and bias."""
    generator = task.generator(purpose)
    device = task.backbone.device

    def layer(columns: int, rows: int) -> Tree:
        draw = (2 * torch.rand(rows, columns + 1, generator=generator) - 1) / math.sqrt(columns)
        return {"weight": draw[:, 1:].clone().to(device), "bias": draw[:, 0].clone().to(device)}

    return {"inner": layer(inputs, hidden), "outer": layer(hidden, outputs)}


def linear(x: Tensor, layer: Tree) -> Tensor:
    """Apply a layer to [..., B, in] and return [..., B, out]; the layer may have a client axis."""
    return x @ layer["weight"].mT + layer["bias"].unsqueeze(-2)


def network(x: Tensor, net: Tree) -> Tensor:
    """Apply both layers, with a ReLU between them."""
    return linear(F.relu(linear(x, net["inner"])), net["outer"])
