"""The global test: the server's model, or its clients', on all test images."""

from dataclasses import replace

import pytest
import torch

from fedloom.common.ids import SERVER_MODEL
from fedloom.federated.answer_counts import AnswerCounts
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.federated.round import initial_state, train_round


class Counted:
    """Hooks that count the predicted images, and whose `download` can be replaced."""

    def __init__(self, hooks, download=None):
        self.hooks = hooks
        self.images = 0
        if download is not None:
            self.download = download

    def predict(self, **given):
        self.images += int(given["batch"].mask.sum())
        return self.hooks.predict(**given)

    def __getattr__(self, name):
        return getattr(self.hooks, name)


def _trained(tiny, name):
    task, hooks = tiny(name)
    return task.at(1), hooks, train_round(task.at(1), hooks, initial_state(task, hooks))[0]


def _predicted(task, hooks, state, download=None, **given):
    """Return the mean number of predictions of a test image, the global row, and the counts."""
    hooks = Counted(hooks, download)
    counted = AnswerCounts()
    row = evaluate(task, hooks, state, global_test=True, counts=counted, **given)[-1]
    return hooks.images / sum(map(len, task.data.test)), row, counted


PASSES = {"fedvpt": 1, "head_tuning": 1, "promptfl": 1, "scaffold_pt": 1}  # `predict(received)`
PASSES |= {
    "pep_fedpt": 2,
    "pfedpg": 2,
    "p_pt": 1 + 1 + 5,
}  # five clients take part; the server has no model


@pytest.mark.parametrize("name", PASSES)
def test_clients_that_predict_alike_have_answered_for_the_server(tiny, name):
    task, hooks, state = _trained(tiny, name)
    passes, row, counts = _predicted(task, hooks, state)
    assert passes == PASSES[name]
    expected = evaluate_globally(task, hooks, state)
    assert row == replace(expected, loss=pytest.approx(expected.loss, rel=1e-6))
    for table in (counts.confusion(), counts.calibration()):
        counted = table.filter(table["client_id"].to_numpy() == row.client_id)
        assert sum(counted["count"].to_pylist()) == row.num_test


def test_a_model_that_one_client_alone_is_sent_is_not_the_servers(tiny):
    task, hooks, state = _trained(tiny, "head_tuning")

    def download(task, server, client):
        return {"params": {"head": server["params"]["head"] + (client == 3)}}

    assert _predicted(task, hooks, state, download)[0] == 2


@pytest.mark.parametrize(
    ("of_server", "of_clients"),
    [
        ({"more": torch.zeros(1)}, {}),
        ({}, {"more": torch.zeros(1)}),
        ({"more": 1}, {"more": torch.ones(1)}),
        ({"more": torch.ones(1)}, {"more": 1}),
        ({"more": torch.ones(1)}, {"more": torch.ones(1, dtype=torch.int64)}),
    ],
)
def test_a_model_with_other_keys_or_types_than_the_clients_is_the_servers(
    tiny, of_server, of_clients
):
    task, hooks, state = _trained(tiny, "head_tuning")

    def download(task, server, client):
        return {"params": server["params"], **(of_server if client == SERVER_MODEL else of_clients)}

    assert _predicted(task, hooks, state, download)[0] == 2


def test_some_clients_have_not_answered_all_images(tiny):
    task, hooks, state = _trained(tiny, "head_tuning")
    passes, row, _ = _predicted(task, hooks, state, ids=[1, 2])
    assert 1 < passes < 2 and row.num_test == sum(map(len, task.data.test))
