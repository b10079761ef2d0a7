"""Losses and gradients of local training, and the updates that clients upload."""

import math
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.trees import Tree, build_tree, leaves, unstack
from fedloom.federated.local_training import Trained
from fedloom.federated.logit_offsets import add_offsets
from fedloom.federated.task import Cohort, Update


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy [K, B] of every example.

    In training, a wrapper may add offsets to the logits of each client (`training_offsets`).

    Args:
        logits: [K, B, C].
        labels: [K, B].
    """
    return F.cross_entropy(add_offsets(logits).mT, labels, reduction="none")


def cross_entropy_among(logits: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy [K, B] of every example, with only its client's classes.

    The offsets of wrappers are not added.

    Args:
        logits: logits of all classes [K, B, C].
        labels: [K, B]. If a label is not among its client's classes, its loss is infinite.
        classes: the classes of each client, bool [K, C].
    """
    among = logits.masked_fill(~classes[:, None], float("-inf"))
    return F.cross_entropy(among.mT, labels, reduction="none")


def guessing_losses(classes: Tensor) -> Tensor:
    """Return the loss [K] of a random guess among each client's classes: the log of their number.

    Clients that train with `cross_entropy_among` report it as the metric `guessing_loss`.

    Args:
        classes: the classes of each client, bool [K, C]; at least one.
    """
    # use the same function as the runtime, since torch's logarithm may differ in the last bit
    logs = [math.log(count) for count in classes.sum(-1).tolist()]
    return torch.tensor(logs, dtype=torch.float64)


def squared_distance(params: Tree, start: Tree) -> Tensor:
    """Return each client's squared L2 distance [K] between two trees of tensors [K, ...].

    FedProx (Li et al., MLSys 2020, Eq. 2) adds mu/2 times this distance, between the parameters and
    those that the client started from, to the loss.
    """
    origin = dict(leaves(start))
    moved = [(value - origin[path]).flatten(1).square().sum(1) for path, value in leaves(params)]
    return torch.stack(moved).sum(0)


def gradients(value: Tensor, params: Tree) -> Tree:
    """Return the gradient of a scalar with respect to every tensor of a tree, as a tree."""
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
    """Return one update per client, which uploads the client's trained parameters.

    Args:
        trained: the result of local training.
        earlier: results of earlier phases of local training in this round. The training loss is the
            mean over the steps of all phases, so that it can be compared between methods.
        kept: names of parameters that clients do not upload but keep.
        state: other tensors [K, ...] that clients keep.
        metrics: numbers per client [K], by name, for clients.parquet.
        extras: tensors [K, ...] that are uploaded besides the parameters.
    """
    # what all clients send, keep and report
    params = {name: value for name, value in trained.params.items() if name not in kept}
    payload = {"params": params, **extras}
    personal = {name: trained.params[name] for name in kept}
    personal.update(state or {})
    numbers = {name: values.tolist() for name, values in (metrics or {}).items()}
    phases = [*earlier, trained]

    # one update for each client
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
