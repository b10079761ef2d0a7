"""FedVPT-Deep: federated averaging of prompts at every block and a linear head.

This is VPT-deep (Jia et al., ECCV 2022): at each listed block, new prompts *replace* the outputs of
the earlier ones. PEP-FedPT's communication figure for this baseline (7.67 M floats in 90 rounds) is
that of 11 blocks. VPT and the default here use all 12. The paper's FedAvg is the unweighted mean
over the round's clients. The option `weighted` weights clients by their training images.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


def prompted_blocks(task: Task) -> list[int]:
    """Return the numbers of the blocks that have prompts, ascending."""
    return sorted(task.options.blocks) or list(range(1, task.backbone.depth + 1))


@fl.hookimpl
def init_server(task: Task) -> Tree:
    vit = task.backbone
    blocks = prompted_blocks(task)
    count = task.options.prompts
    if blocks[-1] > vit.depth:
        raise fl.FedLoomError(
            f"fedvpt_deep: option blocks must name blocks up to {vit.depth}, the ViT's last, got "
            f"{blocks}; remove the others"
        )
    flat = vit.init_prompts(len(blocks) * count, task.generator("shared prompts"))
    prompts = flat.view(len(blocks), count, vit.width)  # [S, P, d], of the S listed blocks
    return {"params": {"head": vit.init_head(task.num_classes), "shared_prompts": prompts}}


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with prompts [K, S, P, d] at the S listed blocks."""
    vit = task.backbone
    blocks = prompted_blocks(task)
    tokens = vit.embed(batch.images)  # [K, B, T, d]
    for j in range(1, vit.depth + 1):
        if j in blocks:
            prompts = params["shared_prompts"][:, blocks.index(j)]  # [K, P, d]
            tokens = fl.insert(tokens, prompts) if j == blocks[0] else fl.replace(tokens, prompts)
        tokens = vit.block(j, tokens, read="pooled")
    return vit.logits(tokens, params["head"])


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return logits(task, received["params"], batch)
