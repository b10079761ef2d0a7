"""Evaluate the clients on several test sets, such as classes that no client trains on."""

from dataclasses import replace

import numpy as np
import torch

from fedloom.common.ids import BASE_CLASSES, OWN_IMAGES, SERVER_MODEL
from fedloom.common.trees import Tree
from fedloom.data.federation import Federation
from fedloom.federated import groups
from fedloom.federated.answer_counts import Score
from fedloom.federated.cohorts import all_answer_the_same, prepare_clients
from fedloom.federated.evaluate import evaluation_row, scores_on
from fedloom.federated.round import attacking_clients
from fedloom.federated.rows import TestSetRow
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task
from fedloom.hooks.run_hooks import Hooks


@torch.no_grad()
def evaluate_test_sets(task: Task, hooks: Hooks, state: State) -> list[TestSetRow]:
    """Return the answers of clients on all test sets, a row for each client and set.

    These are the honest participating clients that have test images, without personalisation. There
    are three kinds of sets (`test_set`):

    1. `own`: the client's own test images.
    2. `base`: the test images of all clients.
    3. The sets of `task.data.unseen`, by their names: classes and datasets that no client trains
       on.
    """
    # the honest clients, and the server's model, which may answer for all of them
    data = task.data
    server_model = prepare_clients(task, hooks, state, [SERVER_MODEL])
    attacking = attacking_clients(task, hooks)
    honest = [k for k in data.tested if k in data.position and k not in attacking]

    # no metrics for the parts of a stream: images of other datasets belong to no part
    described = replace(task, data=replace(data, rounds=None))

    # the scores of the server's model on the sets that it was asked for
    server_scores: dict[str, list[Score]] = {}

    # go through cohorts, each of as many clients as all sets allow
    rows: list[TestSetRow] = []
    sets = _test_sets(data)
    tasks = [replace(task, data=tested) for tested in sets.values()]
    at_once = min(groups.clients_evaluated_at_once(each, state) for each in tasks)
    for start in range(0, len(honest), at_once):
        received, clients = prepare_clients(task, hooks, state, honest[start : start + at_once])

        # if all models are the server's, all clients give its answers to a set that they share
        is_one_model = False
        if not hooks.takes("predict", "clients"):
            is_one_model = all_answer_the_same(server_model[0], received, clients)
        for name, tested in sets.items():
            if is_one_model and name != OWN_IMAGES:
                if name not in server_scores:
                    server_scores[name] = _scores_on_set(task, hooks, *server_model, tested)
                scores = server_scores[name] * len(clients)
            else:
                scores = _scores_on_set(task, hooks, received, clients, tested)
            for client, score in zip(clients.ids, scores, strict=True):
                row = evaluation_row(described, client, [[score]])
                rows.append(TestSetRow(row, test_set=name))
    return rows


def _test_sets(data: Federation) -> dict[str, Federation]:
    """Return the test sets by name, each as a federation whose test images are those of the set."""
    all_images = np.sort(np.concatenate(data.test))
    base = replace(data, test=[all_images] * data.num_clients)
    return {OWN_IMAGES: data, BASE_CLASSES: base, **data.unseen}


def _scores_on_set(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, tested: Federation
) -> list[Score]:
    """Return the scores of K clients, or of the server's model, on their images of a test set."""
    # the server's id is -1, which picks the last client; all clients have the same images here
    ids = list(clients.ids)
    clients = replace(clients, priors=tested.priors[ids])
    images = [tested.test[k] for k in ids]
    return scores_on(replace(task, data=tested), hooks, received, clients, images)
