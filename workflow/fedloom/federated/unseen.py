"""Test a finished run on images on which its clients are not tested after a round.

Those are the test images of all classes that clients train on, and of classes and data sets that no
client trains on: a CLIP method predicts among those classes by their names.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedloom.common.ids import BASE, OWN, SERVER_MODEL
from fedloom.common.tensors import Tree
from fedloom.data.federation import Federation
from fedloom.federated.attacks import attackers
from fedloom.federated.evaluate import Score, is_copied, received_by, row_of, score_of, width
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task
from fedloom.hooks.hook_caller import Hooks


@torch.no_grad()
def answers(task: Task, hooks: Hooks, state: State) -> list[dict[str, Any]]:
    """Let every honest participating client answer all sets of test images; return their rows.

    A row is of a client and a `test_set`: `own` are its own test images, `base` those of all
    clients, and the others are `task.data.unseen`, by their names. Clients answer as they are
    before `personalize`.
    """
    data, rows = task.data, list[dict[str, Any]]()
    everything = np.sort(np.concatenate(data.test))
    shared = {BASE: replace(data, test=[everything] * data.num_clients), **data.unseen}
    server, of_all = received_by(task, hooks, state, [SERVER_MODEL]), dict[str, list[Score]]()
    attacking = attackers(task, hooks)
    honest = [client for client in data.participating if client not in attacking]
    at_once = min(width(replace(task, data=tested), state) for tested in (data, *shared.values()))
    for start in range(0, len(honest), at_once):
        received, clients = received_by(task, hooks, state, honest[start : start + at_once])
        one_model = not hooks.takes("predict", "clients") and is_copied(server[0], received)
        for name, tested in {OWN: data, **shared}.items():
            if one_model and name in shared:  # clients that cannot be told apart answer alike
                if name not in of_all:
                    of_all[name] = _scores(task, hooks, *server, tested)
                scores = of_all[name] * len(clients)
            else:
                scores = _scores(task, hooks, received, clients, tested)
            for client, score in zip(clients.ids, scores, strict=True):
                rows.append(row_of(task, client, [[score]]) | {"test_set": name})
    return rows


def _scores(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, tested: Federation
) -> list[Score]:
    """Return how K clients, or the server's model, answer their test images of a set."""
    ids = list(clients.ids)  # the server's, -1, has the images of the last client, which all have
    clients = replace(clients, priors=tested.priors[ids])
    images = [tested.test[k] for k in ids]
    return score_of(replace(task, data=tested), hooks, received, clients, images)
