"""SGPT's parameters before round 1 (Algorithm 3), and a check that its options fit each other."""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .options import Options

Task = fl.ViTTask[Options]


def params(task: Task) -> Tree:
    """Return the parameters before training (Algorithm 3).

    `head` [C, d] is zero. There are `shared_prompts` [L_S, P_S, d] with the option `shared`, and
    `group_prompts` [G, L_G, P_G, d] and orthonormal `keys` [G, d] with the option `group`. L_S and
    L_G are the numbers of blocks with such prompts, P_S and P_G the numbers of tokens at a block.
    """
    vit = task.backbone
    options = task.options
    result = {"head": vit.init_head(task.num_classes)}

    if options.shared:
        shape = len(options.shared_blocks), options.shared_prompts
        shared = _prompts(task, "shared prompts", *shape)
        result["shared_prompts"] = shared
        if options.variant == "released":
            result["shared_prompts"] = torch.zeros_like(shared)

    if options.group:
        shape = options.groups, len(options.group_blocks), options.group_prompts
        result["group_prompts"] = _prompts(task, "group prompts", *shape)
        keys = torch.empty(options.groups, vit.width)
        torch.nn.init.orthogonal_(keys, generator=task.generator("keys"))
        result["keys"] = keys.to(vit.device)
    return result


def _prompts(task: Task, purpose: str, *shape: int) -> Tensor:
    """Draw prompts [*shape, d] from VPT's distribution."""
    drawn = task.backbone.init_prompts(torch.Size(shape).numel(), task.generator(purpose))
    return drawn.view(*shape, task.backbone.width)


def check_options(options: Options, depth: int) -> None:
    """Check that the options fit each other and a ViT of `depth` blocks.

    Raises:
        FedLoomError: they do not fit; the message names the option.
    """
    if not options.shared and not options.group:
        raise fl.FedLoomError("sgpt: options shared and group are both false; use head_tuning")

    # the ViT must have the blocks
    for name in ("shared_blocks", "group_blocks"):
        if max(getattr(options, name)) > depth:
            raise fl.FedLoomError(
                f"sgpt: option {name} must name blocks up to {depth}, the ViT's last, got "
                f"{getattr(options, name)}; remove the others"
            )
    if options.query_block > depth:
        raise fl.FedLoomError(
            f"sgpt: option query_block must be at most {depth}, the last block of the ViT, got "
            f"{options.query_block}; lower it"
        )

    # shared prompts come before group prompts
    both = options.shared and options.group
    if both and max(options.shared_blocks) >= min(options.group_blocks):
        raise fl.FedLoomError(
            f"sgpt: option group_blocks must come after shared_blocks {options.shared_blocks}, got "
            f"{options.group_blocks}; raise group_blocks or lower shared_blocks"
        )
