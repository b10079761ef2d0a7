"""Label shift: what no, own and estimated class shares are worth on own and on equal labels."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.optimize import minimize

from fedloom.config.kinds import KINDS
from fedloom.contract.tiny import tiny_backbone, tiny_task
from fedloom.federated.evaluate import compute_artefact, evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from first_round import module

PLUGINS = manifest.discover_methods()
WRAPPER = PLUGINS["class_priors"]
TABLE = KINDS["tables"]["label_shift"]
label_shift = module("class_priors", "label_shift")


def measured(tmp_path, method="head_tuning", **options):
    """Return the task after two rounds, the artefact, and each client's evaluated accuracy."""
    plugin = PLUGINS[method]
    task = tiny_task(plugin, tmp_path, (WRAPPER,), backbone=tiny_backbone(plugin.family))
    vars(task.wrappers["class_priors"]).update(options)
    hooks = loader.load_hooks(plugin, wrappers=[WRAPPER])
    state = initial_state(task, hooks)
    for round_number in (1, 2):
        state, _ = train_round(task.at(round_number), hooks, state)
    task = task.at(2)
    found = pd.DataFrame(compute_artefact(task, hooks, state, "label_shift"))
    rows = evaluate(task, hooks, state)
    return task, found, {row.client_id: row.num_correct / row.num_test for row in rows}


def accuracies(found, labels, shares):
    """Return the accuracy of each client on one kind of labels with one kind of shares."""
    rows = found[(found["labels"] == labels) & (found["shares"] == shares)]
    return dict(zip(rows["client_id"], rows["accuracy"], strict=True))


@pytest.mark.parametrize("method", ["head_tuning", "pep_fedpt", "promptfl"])
@pytest.mark.parametrize("test", ["own", "none"])
def test_on_own_labels_the_answers_are_those_of_the_evaluation(tmp_path, method, test):
    _, found, evaluated = measured(tmp_path, method, test=test, train=False)
    assert accuracies(found, "own", test) == evaluated


def test_each_client_has_a_row_for_each_kind_of_labels_and_shares(tmp_path):
    task, found, _ = measured(tmp_path)
    assert len(found) == len(task.data.test) * 6
    assert not found.duplicated(["client_id", "labels", "shares"]).any()
    taking_part = {*found[found["participating"]]["client_id"]}
    assert taking_part == {*task.data.participating}


def test_the_other_test_set_has_as_many_images_of_each_class(tmp_path, monkeypatch):
    monkeypatch.setattr(label_shift, "IMAGES_OF_A_CLASS", 5)
    task = tiny_task(PLUGINS["head_tuning"], tmp_path, (WRAPPER,))
    everyone = np.concatenate(task.data.test)
    drawn = [label_shift.balanced_images(task, client) for client in (0, 1)]
    for images in drawn:
        labels = task.data.labels.numpy()[images]
        assert {*images} <= {*everyone}
        assert np.bincount(labels).tolist() == [5, 5, 5, 5]
    assert drawn[0].tolist() != drawn[1].tolist(), "each client has images of its own"


def test_a_client_without_training_images_answers_at_a_temperature_of_one(tmp_path):
    task = tiny_task(PLUGINS["head_tuning"], tmp_path, (WRAPPER,))
    logits = torch.tensor([[3.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    task.data.train[0] = np.array([], np.int64)

    def answers(images):
        """Yield two answers of client 0 alone, whatever it is asked."""
        clients = SimpleNamespace(ids=(0,), logit_offsets=None)
        batch = SimpleNamespace(
            mask=torch.ones(1, 2, dtype=torch.bool), labels=torch.tensor([[0, 2]])
        )
        yield clients, batch, logits[None]

    offsets = torch.zeros(len(task.data.test), 4)
    columns = label_shift.answers_under_label_shift(task, answers, offsets)
    assert columns["accuracy"] == [0.5] * 6


def test_shares_are_those_that_make_unlabelled_images_most_likely():
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=(60, 3)) + np.array([1.0, 0.0, -0.5])
    posteriors = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    def unlikeliness(free):
        """Return minus the log-likelihood of the images under shares softmax(free, 0)."""
        raised = np.exp([*free, 0.0])
        return -np.log(posteriors @ (raised / raised.sum())).sum()

    best = np.exp([*minimize(unlikeliness, [0.0, 0.0], tol=1e-12).x, 0.0])
    found = label_shift.estimated_shares(torch.from_numpy(logits))
    assert found.numpy() == pytest.approx(best / best.sum(), abs=1e-3)


def test_shares_of_certain_answers_are_those_of_the_answers():
    sure = 200 * torch.eye(4, dtype=torch.float64)[[0, 0, 0, 1]]
    assert label_shift.estimated_shares(sure).tolist() == pytest.approx([0.75, 0.25, 0, 0])


def test_the_temperature_undoes_a_factor_of_calibrated_logits():
    """Labels as frequent as the softmax says are best explained by the logits themselves."""
    chances = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
    shares = np.array([0.5, 0.3, 0.2])
    posteriors = chances * shares / (chances @ shares)[:, None]
    labels = [np.repeat(np.arange(3), np.round(10_000 * row).astype(int)) for row in posteriors]
    logits = np.repeat(np.log(chances), [len(row) for row in labels], axis=0)
    found = label_shift.fitted_temperature(
        torch.from_numpy(2.5 * logits),
        torch.from_numpy(np.concatenate(labels)),
        torch.from_numpy(np.log(shares)),
    )
    assert found == pytest.approx(2.5, rel=1e-3)


def test_estimated_answers_are_of_calibrated_logits_plus_log_shares(tmp_path, monkeypatch):
    """Logits are five times too large; at their temperature, rare classes lose more answers."""
    monkeypatch.setattr(label_shift, "fitted_temperature", lambda *_: 5.0)
    task = tiny_task(PLUGINS["head_tuning"], tmp_path, (WRAPPER,))
    rng = np.random.default_rng(1)
    logits = 5 * (rng.normal(size=(1, 200, 4)) + np.array([1.0, 0.0, 0.0, -1.0]))
    labels = rng.integers(4, size=(1, 200))

    def answers(images):
        """Yield the same answers of client 0, whatever it is asked."""
        mask = torch.ones(1, 200, dtype=torch.bool)
        batch = SimpleNamespace(mask=mask, labels=torch.from_numpy(labels))
        yield SimpleNamespace(ids=(0,), logit_offsets=None), batch, torch.from_numpy(logits)

    found = label_shift.answers_under_label_shift(task, answers, torch.zeros(6, 4))
    estimated = accuracies(pd.DataFrame(found), "own", "estimated")[0]

    # by hand: shares at the right temperature, and answers with and without it
    scaled = logits[0] / 5
    shares = np.full(4, 0.25)
    for _ in range(100):
        raised = shares * np.exp(scaled)
        shares = (raised / raised.sum(1, keepdims=True)).mean(0)
    right = ((scaled + np.log(shares)).argmax(1) == labels[0]).mean()
    too_sure = ((logits[0] + np.log(shares)).argmax(1) == labels[0]).mean()
    assert estimated == right != too_sure


def test_where_classes_are_alike_they_count_alike():
    predicted = torch.tensor([0, 0, 0, 1, 0])
    labels = torch.tensor([0, 0, 0, 1, 1])
    assert label_shift.mean_accuracy_of_classes(predicted, labels) == 0.75


def test_the_table_averages_over_participating_clients(tmp_path):
    rows = []
    for client, taking_part in ((0, True), (1, True), (2, False)):
        for position, labels in enumerate(("own", "equal")):
            for number, shares in enumerate(("none", "own", "estimated")):
                accuracy = (10 * client + 3 * position + number) / 100
                rows.append((client, taking_part, labels, shares, accuracy))
    path = tmp_path / "label_shift.parquet"
    frame = pd.DataFrame(rows, columns=label_shift.COLUMNS)
    pq.write_table(pa.Table.from_pandas(frame), path)

    numbers = TABLE.measure(TABLE(), SimpleNamespace(artefact=path))
    assert numbers == pytest.approx(
        {
            "own_none": 5.0, "own_own": 6.0, "own_estimated": 7.0,
            "equal_none": 8.0, "equal_own": 9.0, "equal_estimated": 10.0,
        }
    )  # fmt: skip
    assert sys.modules[TABLE.__module__].COLUMNS.keys() == numbers.keys()
