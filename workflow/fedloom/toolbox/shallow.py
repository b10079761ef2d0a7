"""Shallow prompts and a linear head (Jia et al., "Visual Prompt Tuning", ECCV 2022).

Many methods train these parameters, and differ only in how clients share and average them.
`shared_prompts` [K, P, d] are inserted behind the class token at block 1. `head` is [K, C, d].
"""

from torch import Tensor

from fedloom.backbones.vit import FrozenViT
from fedloom.common.trees import Tree
from fedloom.data.batch import Batch
from fedloom.federated.task import Cohort, Task
from fedloom.toolbox.training import cross_entropy


def shallow_params(task: Task[FrozenViT], count: int) -> Tree:
    """Return `count` random prompts [P, d] and a head [C, d] of zeros, without a client axis."""
    prompts = task.backbone.init_prompts(count, task.generator("shared prompts"))
    return {"head": task.backbone.init_head(task.num_classes), "shared_prompts": prompts}


def shallow_logits(task: Task[FrozenViT], params: Tree, batch: Batch) -> Tensor:
    """Return logits [K, B, C] with the parameters of `shallow_params` [K, ...]."""
    return task.backbone.forward_prompted(batch.images, params["shared_prompts"], params["head"])


def shallow_loss(
    task: Task[FrozenViT], params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> Tensor:
    """Return the cross-entropy [K, B] of `shallow_logits`; a loss for `train_locally`."""
    return cross_entropy(shallow_logits(task, params, batch), batch.labels)
