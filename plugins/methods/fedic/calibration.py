"""The calibration of an ensemble of S models, which FEDIC's server trains on its own images."""

import torch
from torch import Tensor

from fedloom.toolbox import Task, Tree


def init_calibration(task: Task) -> Tree:
    """Return scales of one, and shifts and a gate of zero, which leave each class as it is."""
    classes = task.num_classes
    device = task.backbone.device
    return {
        "client": torch.ones(classes, device=device),
        "client_bias": torch.zeros(1, device=device),
        "scale": torch.ones(classes, device=device),
        "shift": torch.zeros(classes, device=device),
        "gate": torch.zeros(task.backbone.width, device=device),
        "gate_bias": torch.zeros(1, device=device),
    }


def calibrated(params: Tree, features: Tensor, logits: Tensor, tuned: Tensor) -> Tensor:
    """Compute calibrated logits [n, C] of n images.

    Args:
        params: those of `init_calibration`.
        features: mean of the models' features [n, d].
        logits: of each model [S, n, C].
        tuned: logits of the fine-tuned average [n, C].
    """
    weights = torch.sigmoid(logits @ params["client"] + params["client_bias"])  # [S, n]
    weights = weights / weights.sum(0)
    ensemble = (weights[..., None] * logits).sum(0)  # [n, C]
    adjusted = ensemble * params["scale"] + params["shift"]
    gate = torch.sigmoid(features @ params["gate"] + params["gate_bias"])[:, None]  # [n, 1]
    return gate * adjusted + (1 - gate) * tuned
