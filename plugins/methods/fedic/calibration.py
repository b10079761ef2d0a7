"""The calibration of an ensemble of S models, which FEDIC's server trains on its own images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.toolbox import Task, Tree


def init_calibration(task: Task) -> Tree:
    """Return the calibration before training.

    `client` [C] and `client_bias` [1] give each client's model its weight, by its logits. `scale`
    [C] is one and `shift` [C] is zero, so that the logits of the ensemble stay as they are. `gate`
    [d] and `gate_bias` [1] are zero, so that the gate is half open.
    """
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


def calibrate(params: Tree, features: Tensor, logits: Tensor, tuned: Tensor) -> Tensor:
    """Compute the calibrated logits [n, C] of n images.

    They are g (scale * sum_s w_s z_s + shift) + (1 - g) tuned. Here z_s are the logits of model s,
    w_s is its weight sigmoid(client . z_s + client_bias), divided by the sum over the models, and
    g = sigmoid(gate . h + gate_bias) depends on the feature h of the image.

    Args:
        params: the calibration, with the names of `init_calibration`.
        features: h, the mean of the models' features [n, d].
        logits: z, of each of the S models [S, n, C].
        tuned: logits of the fine-tuned average of the models [n, C].
    """
    # in logarithms, since all models' sigmoids may be too small for a float
    strengths = F.logsigmoid(logits @ params["client"] + params["client_bias"])  # [S, n]
    weights = strengths.softmax(0)
    ensemble = (weights[..., None] * logits).sum(0)  # [n, C]
    adjusted = ensemble * params["scale"] + params["shift"]
    gate = torch.sigmoid(features @ params["gate"] + params["gate_bias"])[:, None]  # [n, 1]
    return gate * adjusted + (1 - gate) * tuned
