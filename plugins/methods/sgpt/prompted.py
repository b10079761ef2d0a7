"""The ViT with shared and group prompts in it (Eq. 2 and 3)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Tree

from .options import Options

Task = fl.ViTTask[Options]

# by block: the prompts that enter there, and whether they are inserted or replace the ones before
Slots = dict[int, tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]]


def logits(task: Task, params: Tree, batch: Batch, groups: Tensor | None = None) -> Tensor:
    """Return logits [K, B, C].

    Args:
        params: with a client axis: `head` [K, C, d], `shared_prompts` [K, L_S, P_S, d],
            `group_prompts` [K, G, L_G, P_G, d].
        groups: the group of every image [K, B]; None: without group prompts (block I).
    """
    vit = task.backbone
    options = task.options
    keeps = options.variant == "released"

    # the prompts of each block
    deep = {}
    count = 0
    if options.shared:
        deep |= _slots(options.shared_blocks, params["shared_prompts"].unbind(1), keeps)
    if groups is not None:
        clients = torch.arange(len(groups), device=groups.device)[:, None]
        mine = params["group_prompts"][clients, groups]  # [K, B, L_G, P_G, d]
        deep |= _slots(options.group_blocks, mine.unbind(2), keeps)
        count = options.group_prompts * (len(options.group_blocks) if keeps else 1)

    # the blocks
    tokens = vit.embed(batch.images)  # [K, B, T, d]
    for j in range(1, vit.depth + 1):
        if j in deep:
            prompts, put = deep[j]
            tokens = put(tokens, prompts)  # Eq. 2, Eq. 3
        tokens = vit.block(j, tokens, read=1 + count)
    return fl.linear(vit.final_norm(tokens).mean(-2), params["head"])


def _slots(blocks: Sequence[int], prompts: Sequence[Tensor], keeps: bool) -> Slots:
    """Return what enters at each of the blocks: [K, P, d], or [K, B, P, d] by image.

    Prompts replace those of the block before; with `keeps`, as in the authors' code, those stay
    and the sequence grows.
    """
    return {
        j: (own, fl.insert if keeps or i == 0 else fl.replace)
        for i, (j, own) in enumerate(zip(sorted(blocks), prompts, strict=True))
    }
