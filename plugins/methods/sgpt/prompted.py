"""The ViT with shared and group prompts in it (Eq. 2 and 3)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Tree

from .options import Options

Task = fl.ViTTask[Options]

# number of a block -> the prompts that enter there, and `insert` or `replace`
Slots = dict[int, tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]]


def logits(task: Task, params: Tree, batch: Batch, groups: Tensor | None = None) -> Tensor:
    """Return logits [K, B, C] of images with shared prompts and the prompts of their groups.

    The head classifies the mean of the class token and the tokens of the group prompts.

    Args:
        params: `head` [K, C, d], `shared_prompts` [K, L_S, P_S, d] and `group_prompts` [K, G, L_G,
            P_G, d].
        groups: the group of each image [K, B]; None for no group prompts (block I).
    """
    vit = task.backbone
    options = task.options
    keeps = options.variant == "released"

    # the prompts of each block, and the number of group prompt tokens behind the last one
    deep = {}
    count = 0
    if options.shared:
        deep |= _slots(options.shared_blocks, params["shared_prompts"].unbind(1), keeps)
    if groups is not None:
        clients = torch.arange(len(groups), device=groups.device)[:, None]
        mine = params["group_prompts"][clients, groups]  # [K, B, L_G, P_G, d]
        deep |= _slots(options.group_blocks, mine.unbind(2), keeps)
        count = options.group_prompts * (len(options.group_blocks) if keeps else 1)

    # run the blocks; prompts enter before their block
    tokens = vit.embed(batch.images)  # [K, B, T, d]
    for j in range(1, vit.depth + 1):
        if j in deep:
            prompts, put = deep[j]
            tokens = put(tokens, prompts)  # Eq. 2, Eq. 3
        tokens = vit.block(j, tokens, read=1 + count)
    return fl.linear(vit.final_norm(tokens).mean(-2), params["head"])


def _slots(blocks: Sequence[int], prompts: Sequence[Tensor], keeps: bool) -> Slots:
    """Return how the prompts of each block enter.

    The prompts of the first block are inserted. Those of a later block replace the prompts of the
    block before.

    Args:
        blocks: numbers of the blocks.
        prompts: for each block in ascending order, prompts [K, P, d], or [K, B, P, d] if each image
            has its own.
        keeps: True inserts the prompts of all blocks, as the authors' code does. The earlier
            prompts stay, so the sequence grows.
    """
    return {
        j: (own, fl.insert if keeps or i == 0 else fl.replace)
        for i, (j, own) in enumerate(zip(sorted(blocks), prompts, strict=True))
    }
