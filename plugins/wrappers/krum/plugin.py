"""Krum and Multi-Krum: go on with the updates that have the nearest others.

Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NIPS
2017), Section 4: with n updates of which f may be anything, the score s(i) of update i is the sum
of its squared distances to the n - f - 2 others that are nearest to it. Krum takes the update of
the lowest score; Multi-Krum (Section 5) averages the m of the lowest scores. Choices:

- An update is all floating-point numbers of what a client uploads, in float64. Of a method whose
  clients start from the same parameters, distances of parameters are those of changes.
- Of equal scores, that of the lower client id wins.
- The method averages the remaining updates, by numbers of training images if it does so; a client
  whose update is kept is believed in its number.
- An update with NaN or infinity is left out, and counts as one of the f: its distance to all
  others is infinite.
- A round of no more than m updates is taken as it is; otherwise it needs n >= 2 f + 3, as in the
  paper.
"""

from collections.abc import Generator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Task, Update


def scores(vectors: Tensor, byzantine: int) -> Tensor:
    """Compute s(i) [n] of updates [n, D]."""
    distances = torch.stack([(vectors - v).square().sum(1) for v in vectors])  # [n, n]
    others = distances.sort(1).values[:, 1:]  # the first is the update itself
    return others[:, : len(vectors) - byzantine - 2].sum(1)


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    sent = yield
    options = task.wrappers["krum"]
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

    # the updates nearest to their neighbours
    byzantine = max(0, options.byzantine - (len(sent) - len(updates)))  # among those left
    vectors = torch.stack([fl.flatten(update.payload).double() for update in updates])
    score = scores(vectors, byzantine).tolist()
    best = sorted(range(len(updates)), key=lambda i: (score[i], updates[i].client))
    return [updates[i] for i in sorted(best[: options.kept])]
