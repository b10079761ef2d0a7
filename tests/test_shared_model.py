"""The global test does not ask again what all clients have answered as one model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.federated.confusion import Confusion
from fedloom.federated.evaluate import evaluate_clients, evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.shared_model import SharedModel, WatchedCohort
from fedloom.federated.task import cohort


class Counted:
    """Hooks that count calls of `predict`, and whose `download` can be replaced."""

    def __init__(self, hooks, download=None):
        self.hooks, self.calls = hooks, 0
        if download is not None:
            self.download = download

    def predict(self, **given):
        self.calls += 1
        return self.hooks.predict(**given)

    def __getattr__(self, name):
        return getattr(self.hooks, name)


def _global_row(task, hooks, state, shared, alter=lambda: None):
    """The global test after that of the clients, its confusion, and how often it predicts."""
    evaluate_clients(task, hooks, state, Confusion(), shared=shared)
    alter()
    before, confusion = hooks.calls, Confusion()
    row = evaluate_globally(task, hooks, state, confusion, shared=shared)
    return row, confusion.table(), hooks.calls - before


REUSED = {"fedvpt": True, "head_tuning": True, "promptfl": True, "scaffold_pt": True}
REUSED |= {
    "pep_fedpt": False,  # reads class priors
    "p_pt": False,  # reads the prompts that a client keeps
    "pfedpg": False,  # is sent prompts of its own
}


@pytest.mark.parametrize("name", REUSED)
def test_answers_are_used_again_where_clients_are_one_model_and_change_nothing(tiny, name):
    task, hooks = tiny(name)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    expected, answers, calls = _global_row(task.at(1), Counted(hooks), state, None)
    actual, again, fewer = _global_row(task.at(1), Counted(hooks), state, SharedModel())
    assert calls > 0 and fewer == (0 if REUSED[name] else calls)
    assert actual == expected | {"loss": pytest.approx(expected["loss"], rel=1e-6)}
    assert again == answers


def test_a_model_that_one_client_alone_is_sent_is_not_the_servers(tiny):
    task, hooks = tiny("head_tuning")
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))

    def download(task, server, client):
        return {"params": {"head": server["params"]["head"] + (client == 3)}}

    _, _, calls = _global_row(task, Counted(hooks, download), state, SharedModel())
    assert calls > 0


def test_answers_to_other_images_are_not_those_of_the_global_test(tiny):
    task, hooks = tiny("head_tuning")
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    kept = task.data.test[0]

    def fewer():
        task.data.test[0] = kept[1:]

    row, _, calls = _global_row(task, Counted(hooks), state, SharedModel(), fewer)
    assert calls > 0 and row["num_test"] == sum(map(len, task.data.test))


def test_another_model_than_the_clients_is_asked(tiny):
    task, hooks = tiny("head_tuning")
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))

    def later():
        state.server["params"]["head"] = state.server["params"]["head"] + 1

    _, _, calls = _global_row(task, Counted(hooks), state, SharedModel(), later)
    assert calls > 0


@pytest.mark.parametrize(
    ("look", "seen"),
    [
        (lambda clients: len(clients), set()),
        (lambda clients: clients.state["bias"], {"state"}),
        (lambda clients: clients.priors, {"priors"}),
        (lambda clients: clients.is_server_model, {"ids"}),
        (lambda clients: clients.num_examples, {"num_examples"}),
        (lambda clients: vars(clients), {"__dict__"}),
        (lambda clients: clients.subset([1]).state, {"ids", "priors"}),
        (lambda clients: replace(clients, state={}), {"ids", "priors"}),
    ],
)
def test_what_a_hook_reads_of_its_clients_is_noticed(tiny, look, seen):
    task, _ = tiny("head_tuning")
    clients = cohort(task, [1, 2], [{"bias": torch.zeros(4)}] * 2)
    watched = WatchedCohort.of(clients)
    look(watched)
    assert seen <= watched.noticed if seen else not watched.noticed
    assert watched.ids == clients.ids and np.array_equal(watched.priors, clients.priors)
