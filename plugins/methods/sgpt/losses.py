"""What the two blocks of Algorithm 1 minimise, as `train_locally` takes it."""

import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree

from .options import Options
from .prompted import logits
from .selection import cosines, group_while_training

Task = fl.ViTTask[Options]


def shared_loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return the loss of block I [K, B]: the cross-entropy without group prompts (Eq. 10)."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


def group_loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Return the loss of block II [K, B]: the cross-entropy plus L_key (Eq. 11).

    L_key is minus the cosine between an image's query and the key of its group. The extras are
    `selected` [K, B, G], 1 at the group that each image chose, and the cross-entropy, which is the
    loss to report.
    """
    cosine = cosines(task, params["keys"], batch)  # [K, B, G]
    so_far = received["constants"]["selected"]  # [K, G]
    groups = group_while_training(task.options, cosine.detach(), so_far, batch.mask)
    key = -cosine.gather(-1, groups[..., None])[..., 0]  # L_key of Eq. 6
    entropy = fl.cross_entropy(logits(task, params, batch, groups), batch.labels)
    selected = F.one_hot(groups, cosine.shape[-1]).double()
    return key + entropy, {"selected": selected, "reported_loss": entropy}
