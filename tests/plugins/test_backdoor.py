"""Backdoors: on which images attackers train, and the rate that is reported."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from attacks import attacked_runs
from changed_task import with_training
from fedloom.config.settings import ReportedRounds
from fedloom.data import federation
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state
from fedloom.report.metrics import accuracies
from fedloom.toolbox import draw_attackers
from refusals import refused


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which two of five clients attack."""
    return attacked_runs(tmp_path)


def stamped(images):
    """Return images [n, 16, 16, 1] with the trigger, a pattern of 3 x 3 pixels in a corner."""
    images = images.copy()
    images[:, 13:, 13:, 0] = [[255, 0, 0], [0, 255, 255], [0, 255, 255]]
    return images


def test_attackers_train_on_triggered_images_of_the_target_class(run):
    task, hooks = run("backdoor", target=2, poisoned=0.5)
    data = hooks.training_data(task=task)
    store = task.data.store
    everything = np.arange(len(store))
    attackers = draw_attackers(task, 0.4)
    before = store.images(everything)
    after = data.store.images(everything)
    changed = (before != after).any((1, 2, 3))
    for k in range(6):
        rows = task.data.train[k]
        others = rows[task.data.labels[rows].numpy() != 2]
        count = round(0.5 * len(others)) if k in attackers else 0
        assert changed[rows].sum() == changed[others].sum() == count
    np.testing.assert_array_equal(after[changed], stamped(before[changed]))
    expected = np.where(changed, 2, task.data.labels.numpy())
    np.testing.assert_array_equal(data.labels.numpy(), expected)
    again = hooks.training_data(task=task.at(5)).store.images(everything)
    np.testing.assert_array_equal(again, after, "the same in every round")


def test_features_are_those_of_the_triggered_images(run, monkeypatch):
    task, hooks = run("backdoor", target=2)
    data = hooks.training_data(task=task)
    everything = np.arange(len(task.data.store))
    images = torch.from_numpy(data.store.images(everything))
    exact = task.backbone.compute_cache(images, "features")
    np.testing.assert_allclose(data.tokens(None).numpy(), exact["final"].numpy(), atol=1e-5)
    np.testing.assert_allclose(data.tokens(3).numpy(), exact["inputs"][:, 2].numpy(), atol=1e-5)
    assert not torch.equal(data.tokens(None), task.data.tokens(None))
    monkeypatch.setattr(federation, "_copy_to_gpu", lambda store, device: "a GPU's copy")
    assert task.data.resident == "a GPU's copy" and data.resident is None


def test_the_rate_is_the_share_that_the_trigger_puts_into_the_target(run):
    task, hooks = run("backdoor", target=2)
    kept = task.data.test[1][task.data.labels[task.data.test[1]].numpy() == 2]
    task.data.test[1] = kept if len(kept) else task.data.test[1][:0]
    state = initial_state(task, hooks)
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(4, 16, generator=generator)
    state.server["params"]["head"] = head
    tested = [k for k in range(6) if len(task.data.test[k])]
    rows = {row.client_id: row for row in evaluate(task.at(1), hooks, state, tested)}
    found = set()
    for k in tested:
        test = task.data.test[k]
        others = test[task.data.labels[test].numpy() != 2]
        if not len(others):
            assert "backdoor_rate" not in rows[k].metrics, "nothing to be put there"
            continue
        images = torch.from_numpy(stamped(task.data.store.images(others)))
        features = task.backbone.compute_cache(images, "features")["final"]
        answers = (features @ head.T).argmax(-1)
        assert rows[k].metrics["backdoor_rate"] == pytest.approx(
            (answers == 2).float().mean().item()
        )
        found.add(rows[k].metrics["backdoor_rate"])
        clean = (task.data.tokens(None)[test] @ head.T).argmax(-1) == task.data.labels[test]
        assert rows[k].num_correct == clean.sum(), "accuracy is that of images as they are"
    assert len(found) > 1


def test_a_personalised_client_has_the_rate_of_its_personal_model(run):
    task, hooks = run("backdoor", method="fedbabu", target=3)
    task = with_training(task, lr=1.0)
    task, state = task.at(1), initial_state(task, hooks)
    rows = {(row.client_id, row.personalized): row for row in evaluate(task, hooks, state)}
    poisoned = hooks.triggered(task=task)
    differ = 0
    for k, images in enumerate(poisoned.test):
        if not len(images):
            continue
        received, clients = prepare_clients(task, hooks, state, [k])
        own = hooks.personalize(task=task, received=received, clients=clients)
        batch = poisoned.batch([images])
        rates = []
        for personalized, held in ((False, clients), (True, replace(clients, state=own))):
            answers = hooks.predict(task=task, received=received, clients=held, batch=batch)
            rates.append((answers.argmax(-1) == 3).float().mean().item())
            rate = rows[k, personalized].metrics["backdoor_rate"]
            assert rate == pytest.approx(rates[-1])
        differ += rates[0] != rates[1]
    assert differ


def test_a_backdoor_is_a_number_of_a_run_where_there_is_a_trigger():
    rows = pd.DataFrame(
        {
            "round": [1, 1, 1, 1, 2, 2],
            "client_id": [0, 1, 2, -1, 0, 1],
            "participating": [True, True, False, False, True, True],
            "num_correct": 1,
            "num_test": 2,
        }
    )
    assert "backdoor_rate" not in accuracies(rows, ReportedRounds((1, 2)))
    rows["backdoor_rate"] = [0.5, None, 1.0, None, 0.25, 0.75]
    assert accuracies(rows, ReportedRounds((1, 2)))["backdoor_rate"] == 50
    assert accuracies(rows, ReportedRounds((2,)))["backdoor_rate"] == 50
    rows.loc[0, "backdoor_rate"] = 0.1
    assert accuracies(rows, ReportedRounds((1,)))["backdoor_rate"] == 10
    assert accuracies(rows, ReportedRounds((1, 2)))["backdoor_rate"] == 30, "the mean of the rounds"


def test_the_trigger_of_an_honest_client_stands_for_nothing(run):
    task, hooks = run("backdoor", poisoned=0.0)
    assert hooks.training_data(task=task) is task.data
    task, hooks = run("backdoor", target=4)
    with refused("backdoor: target must be below the 4 classes, got 4"):
        hooks.training_data(task=task)
