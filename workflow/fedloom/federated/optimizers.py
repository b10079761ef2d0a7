"""Optimisers, learning rates and gradient clipping of local training."""

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from fedloom.federated.task import Task


def make_optimizer(
    training: SimpleNamespace, params: list[Tensor], lr: float
) -> torch.optim.Optimizer:
    """Build the optimiser that the training options name.

    All of them work element by element, so that parameters [K, ...] of K clients stay apart.
    """
    decay = training.weight_decay
    if training.optimizer == "sgd":
        return torch.optim.SGD(params, lr, momentum=training.momentum, weight_decay=decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    return kind(params, lr, betas=tuple(training.betas), eps=training.eps, weight_decay=decay)


def learning_rate(task: Task) -> float:
    """Return the learning rate of round `task.round` (from 1).

    The schedule is constant, `lr`; exponential, `lr * decay ** (round - 1)`; or cosine, from `lr`
    in round 1 towards 0 after the last round.
    """
    t = task.training
    if t.schedule == "constant":
        return t.lr
    if t.schedule == "exponential":
        return t.lr * t.decay ** (task.round - 1)
    return t.lr * (1 + math.cos(math.pi * (task.round - 1) / t.rounds)) / 2  # cosine


def clip_gradients(params: list[Tensor], limit: float) -> None:
    """Scale each client's gradient down to an L2 norm of `limit`, as torch's clip_grad_norm_ does.

    Args:
        params: parameters [K, ...]; a client's norm is taken over its part of all of them.
    """
    gradients = [p.grad for p in params if p.grad is not None]
    if not gradients:
        return
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()  # [K]
    scale = (limit / (norm + 1e-6)).clamp(max=1)
    for g in gradients:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))
