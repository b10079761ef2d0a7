"""Shallow prompts and a linear head (Jia et al., "Visual Prompt Tuning", ECCV 2022).

What many methods train, however they share and average it: `params` are `shared_prompts` [K, P, d],
which enter behind the class token at block 1, and `head` [K, C, d].
"""

import torch.nn.functional as F
from torch import Tensor

from fedloom.data.federation import Batch
from fedloom.engine.task import Cohort, Task
from fedloom.engine.tree import Tree


def shallow_params(task: Task, count: int) -> Tree:
    """Fresh, without a client axis: `count` prompts and a head."""
    prompts = task.backbone.prompts(count, task.generator("shared prompts"))
    return {"head": task.backbone.head(task.num_classes), "shared_prompts": prompts}


def shallow_scores(task: Task, params: Tree, batch: Batch) -> Tensor:
    """[K, B, C]."""
    return task.backbone.prompted(batch.images, params["shared_prompts"], params["head"])


def shallow_loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Cross-entropy [K, B], as `local_sgd` wants a loss."""
    scores = shallow_scores(task, params, batch)
    return F.cross_entropy(scores.mT, batch.labels, reduction="none")
