"""The forward pass: shared prompts at block 1, and mixed class prompts at the chosen blocks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree

from .options import Options

Task = fl.ViTTask[Options]


@dataclass(frozen=True)
class Forward:
    """The result of a forward pass that stops at the input of some block.

    Attributes:
        tokens: the input [K, B, T, d] of that block. If it is M + 1, behind all M blocks, only the
            class token [K, B, 1, d].
        class_tokens: for each block up to that one, the class token [K, B, d] at its input.
        weights: for each chosen block up to that one, the mixing weights [K, B, C].
    """

    tokens: Tensor
    class_tokens: list[Tensor]
    weights: list[Tensor]


def mixing_weights(cls: Tensor, prototypes: Tensor, priors: Tensor, tau: float) -> Tensor:
    """Compute the weights softmax_c(cos(cls, mu_c) / tau + log prior_c) [K, B, C] (Eq. 13-15).

    Args:
        cls: class tokens [K, B, d].
        prototypes: mu [K, C, d]. A class without a prototype has zeros, and so the cosine 0.
        priors: share of each class in each client's images [K, C]. The share 0 gives the weight 0.
        tau: temperature.
    """
    cosine = F.normalize(cls, dim=-1) @ F.normalize(prototypes, dim=-1).mT  # [K, B, C]
    return torch.softmax(cosine / tau + priors.log()[:, None], -1)


def forward(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch, until: int
) -> Forward:
    """Run the blocks before block `until`; M + 1 runs all M blocks.

    Args:
        params: `shared_prompts` [K, P, d] and `class_prompts` [K, C, d].
        received: has the `prototypes` [K, S, C, d] of the S chosen blocks in `constants`.
        until: number of the block, from 1, at whose input to stop.
    """
    vit = task.backbone
    options = task.options

    # what enters block 1
    priors = clients.priors if options.class_priors else torch.ones_like(clients.priors)
    tokens = fl.insert(vit.embed(batch.images), params["shared_prompts"])  # Eq. 5

    # the blocks, and a mixed prompt before some of them
    class_tokens = []
    mixings = []
    for j in range(1, until + 1):
        cls = tokens[..., 0, :]  # [K, B, d]
        if options.ccmp and j in options.blocks:
            mu = received["constants"]["prototypes"][:, len(mixings)]  # [K, C, d]
            weights = mixing_weights(cls, mu, priors, options.tau)
            mixed = (weights @ params["class_prompts"]).unsqueeze(-2)  # Eq. 6: [K, B, 1, d]
            tokens = fl.replace(tokens, mixed) if mixings else fl.insert(tokens, mixed)  # Eq. 7
            mixings.append(weights)
        class_tokens.append(cls)
        if j < until:
            tokens = vit.block(j, tokens, read="pooled")
    return Forward(tokens, class_tokens, mixings)
