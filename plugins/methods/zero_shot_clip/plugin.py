"""Zero-Shot CLIP: class names in hand-written templates; nothing is trained and nothing is sent.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (ICML 2021).
The training loss of a round is the mean cross-entropy on the training images of the clients.
"""

from typing import Any

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.Task[Any, Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Return no parameters: nothing is trained, and nothing is sent."""
    return {"params": {}}


def logits(task: Task, batch: Batch) -> Tensor:
    """Return the logits [K, B, C] of images for the classes in the templates."""
    clip = task.backbone
    text = clip.zero_shot(task.data.classes, task.options.templates)  # [C, d_joint]
    return clip.logits(batch.features, text)


@fl.hookimpl
@torch.no_grad()
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Return empty updates with each client's mean cross-entropy over its training images."""
    total = torch.zeros(len(clients))  # [K]
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        losses = fl.cross_entropy(logits(task, batch), batch.labels)  # [K, B]
        total += losses.where(batch.mask, 0).sum(1).cpu()
    mean = total / torch.tensor(clients.num_examples)
    return [
        Update({"params": {}}, {}, n, {"train_loss": loss})
        for n, loss in zip(clients.num_examples, mean.tolist(), strict=True)
    ]


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    """Return the same logits [K, B, C] in every round."""
    return logits(task, batch)
