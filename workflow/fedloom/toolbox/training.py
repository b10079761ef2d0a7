"""Losses, gradients and uploads of local training."""

import math
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.trees import Tree, build_tree, leaves, unstack
from fedloom.federated.local_training import Trained
from fedloom.federated.task import Cohort, Update


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy [K, B] of every example, from logits [K, B, C] and labels [K, B]."""
    return F.cross_entropy(logits.mT, labels, reduction="none")


def cross_entropy_among(logits: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy [K, B] of every example among its client's classes alone.

    Args:
        logits: of all classes [K, B, C].
        labels: [K, B]; the loss of a label that is not among its client's classes is infinite.
        classes: each client's classes, bool [K, C].
    """
    return cross_entropy(logits.masked_fill(~classes[:, None], float("-inf")), labels)


def guessing_losses(classes: Tensor) -> Tensor:
    """Return the loss [K] that a guess among each client's classes has: the log of their number.

    It is the metric `guessing_loss` of clients that train with `cross_entropy_among`.

    Args:
        classes: each client's classes, bool [K, C], at least one.
    """
    # as the runtime computes log C: the last bit of torch's logarithm may be another
    logs = [math.log(count) for count in classes.sum(-1).tolist()]
    return torch.tensor(logs, dtype=torch.float64)


def squared_distance(params: Tree, start: Tree) -> Tensor:
    """Return each client's squared distance [K] between two trees of tensors [K, ...].

    FedProx (Li et al., MLSys 2020, Eq. 2) adds mu/2 times that to the start to a client's loss.
    """
    origin = dict(leaves(start))
    moved = [(value - origin[path]).flatten(1).square().sum(1) for path, value in leaves(params)]
    return torch.stack(moved).sum(0)


def gradients(value: Tensor, params: Tree) -> Tree:
    """Return the gradient of a scalar by every tensor of a tree, as a tree of the same names."""
    flat = dict(leaves(params))
    return build_tree(zip(flat, torch.autograd.grad(value, [*flat.values()]), strict=True))


def make_updates(
    trained: Trained,
    clients: Cohort,
    *,
    earlier: Sequence[Trained] = (),
    kept: Collection[str] = (),
    state: Tree | None = None,
    metrics: Mapping[str, Tensor] | None = None,
    **extras: Tensor,
) -> list[Update]:
    """Return one update per client that uploads its trained parameters.

    Args:
        earlier: the phases of local training that went before `trained` in this round. The training
            loss is the mean over the steps of all, so that it can be compared among methods.
        kept: names of the parameters that the client keeps to itself instead of uploading them.
        state: tensors [K, ...] that the client keeps beside them.
        metrics: a number per client [K], by name, for clients.parquet.
        extras: tensors [K, ...] that are uploaded beside the parameters.
    """
    # what all clients send, what they keep, and what they report
    params = {name: value for name, value in trained.params.items() if name not in kept}
    payload = {"params": params, **extras}
    personal = {name: trained.params[name] for name in kept}
    personal.update(state or {})
    numbers = {name: values.tolist() for name, values in (metrics or {}).items()}
    phases = [*earlier, trained]

    # divided by client
    updates = list[Update]()
    for k, examples in enumerate(clients.num_examples):
        of_client = {"train_loss": _mean_loss(phases, k)}
        for name, values in numbers.items():
            of_client[name] = values[k]

        update = Update(
            payload=unstack(payload, k),
            client_state=unstack(personal, k),
            num_examples=examples,
            metrics=of_client,
        )
        updates.append(update)
    return updates


def _mean_loss(phases: Sequence[Trained], client: int) -> float:
    """Return a client's mean loss over its steps in all phases."""
    if len(phases) == 1:
        return phases[0].loss[client]
    steps = sum(phase.steps[client] for phase in phases)
    total = sum(phase.loss[client] * phase.steps[client] for phase in phases)
    return total / max(steps, 1)
