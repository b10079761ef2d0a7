"""Losses and penalties that many methods minimise."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.tensors import Tree, leaves


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy [K, B] of every example, from logits [K, B, C] and labels [K, B]."""
    return F.cross_entropy(logits.mT, labels, reduction="none")


def squared_distance(params: Tree, start: Tree) -> Tensor:
    """Return each client's squared distance [K] between two trees of tensors [K, ...].

    FedProx (Li et al., MLSys 2020, Eq. 2) adds mu/2 times that to the start to a client's loss.
    """
    origin = dict(leaves(start))
    moved = [(value - origin[path]).flatten(1).square().sum(1) for path, value in leaves(params)]
    return torch.stack(moved).sum(0)
