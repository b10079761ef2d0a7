"""Krum and Multi-Krum: go on with the updates that have the nearest others.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NIPS
2017), Section 4. Of n updates, f may be anything. The score s(i) of update i is the sum of its
squared distances to the n - f - 2 other updates that are nearest to it. Krum takes the update with
the lowest score. Multi-Krum (Section 5) averages the m updates with the lowest scores. Choices:

- An update is the vector of all floating-point numbers that a client uploads, in float64. If all
  clients start with the same parameters, distances of parameters are distances of changes.
- Of equal scores, that of the lower client id counts as lower.
- The method averages the remaining updates, weighted by numbers of training images if it does so
  without this wrapper. A client whose update is kept is believed in this number.
- An update with NaN or infinity is left out, and counts as one of the f: its distance to all others
  is infinite.
- A round with at most m updates is taken as it is. Any other round needs n >= 2 f + 3, as in the
  paper.
"""

from collections.abc import Generator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Task, Update

from .options import Options


def scores(vectors: Tensor, byzantine: int) -> Tensor:
    """Compute the score s(i) [n] of each of n updates.

    It is the sum of the squared distances to the n - f - 2 nearest other updates.

    Args:
        vectors: the updates [n, D].
        byzantine: f.
    """
    distances = torch.stack([(vectors - v).square().sum(1) for v in vectors])  # [n, n]
    others = distances.sort(1).values[:, 1:]  # the first is the update itself
    return others[:, : len(vectors) - byzantine - 2].sum(1)


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    sent = yield
    options: Options = task.wrappers["krum"]
    updates = fl.finite_updates(task, "krum", sent)
    if len(updates) <= options.kept:
        return updates

    # enough updates for the bound on attackers
    needed = 2 * options.byzantine + 3
    if len(sent) < needed:
        raise fl.FedLoomError(
            f"krum: round {task.round} has {len(sent)} updates, but byzantine: "
            f"{options.byzantine} needs {needed}; raise study.clients_per_round or lower it"
        )

    # the number of attackers that are left: each update that was left out counts as one of the f
    byzantine = max(0, options.byzantine - (len(sent) - len(updates)))

    # the updates nearest to their neighbours
    vectors = torch.stack([fl.flatten(update.payload).double() for update in updates])
    score = scores(vectors, byzantine).tolist()
    best = sorted(range(len(updates)), key=lambda i: (score[i], updates[i].client))
    return [updates[i] for i in sorted(best[: options.kept])]
