"""The two-layer networks of g and alpha, which both variants use."""

import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .options import Options

Task = fl.ViTTask[Options]


def init_nets(task: Task) -> Tree:
    """Draw the networks of `g` (from d to 1) and `alpha` (from d to d) for a candidate [d]."""
    width = task.backbone.width
    hidden = task.options.hidden
    outputs = {"g": 1, "alpha": width}
    return {name: init_layers(task, name, width, hidden, n) for name, n in outputs.items()}


def init_layers(task: Task, purpose: str, inputs: int, hidden: int, outputs: int) -> Tree:
    """Draw two layers, `inner` and `outer`, as torch.nn.Linear draws its weight and bias.

    `inner` has `weight` [hidden, inputs] and `bias` [hidden], `outer` has `weight` [outputs,
    hidden] and `bias` [outputs].
    """
    generator = task.generator(purpose)
    device = task.backbone.device

    def layer(columns: int, rows: int) -> Tree:
        # weight and bias have the same distribution, so draw the bias as the first column
        draw = fl.init_linear(columns, rows, columns + 1, generator=generator, device=device)
        return {"weight": draw[:, 1:].clone(), "bias": draw[:, 0].clone()}

    return {"inner": layer(inputs, hidden), "outer": layer(hidden, outputs)}


def network(x: Tensor, net: Tree) -> Tensor:
    """Return outer(relu(inner(x))) [n, outputs] for x [n, inputs].

    With layers of K clients, x is [K, n, inputs].
    """
    return fl.apply_linear(F.relu(fl.apply_linear(x, net["inner"])), net["outer"])
