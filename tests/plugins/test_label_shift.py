"""Label shift: what no, own and estimated class shares are worth on own and balanced images."""

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
from fedloom.federated.round import attacking_clients, initial_state, train_round
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


def answering(logits, labels):
    """Return a function that answers everything that client 0 is asked in the same way, in turn."""

    def answers(images):
        """Yield the answers of client 0 to its images."""
        count = len(images[0])
        chosen = torch.arange(count) % len(labels)
        batch = SimpleNamespace(
            mask=torch.ones(1, count, dtype=torch.bool),
            labels=torch.from_numpy(labels)[chosen][None],
        )
        yield (
            SimpleNamespace(ids=(0,), logit_offsets=None),
            batch,
            torch.from_numpy(logits)[chosen][None],
        )

    return answers


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


def calibration_by_hand(logits, labels, offsets):
    """Return (T, b) with the least cross-entropy plus penalty, by a general minimiser."""

    def loss(free):
        scores = logits / np.exp(free[0]) + free[1:] + offsets
        right = scores[np.arange(len(labels)), labels]
        entropy = (np.log(np.exp(scores).sum(1)) - right).mean()
        return entropy + (free**2).sum() / (2 * len(labels))

    best = minimize(loss, np.zeros(1 + logits.shape[1]), tol=1e-12).x
    return np.exp(best[0]), best[1:]


@pytest.mark.parametrize("scale", [0.4, 1.0, 5.0])
def test_temperature_and_biases_have_the_least_penalised_loss(scale):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=80)
    logits = scale * (rng.normal(size=(80, 3)) + 2 * np.eye(3)[labels])
    offsets = np.log(rng.dirichlet([1, 1, 1], size=80))
    temperature, biases = calibration_by_hand(logits, labels, offsets)
    found = label_shift.fit_calibration(*map(torch.from_numpy, (logits, labels, offsets)))
    assert float(found[0]) == pytest.approx(temperature, rel=1e-4)
    assert found[1].numpy() == pytest.approx(biases, abs=1e-4)


def test_images_that_are_all_classified_correctly_give_a_finite_temperature():
    logits = 3 * torch.eye(4, dtype=torch.float64)[[0, 1, 2, 0]]
    labels = torch.tensor([0, 1, 2, 0])  # no image of class 3
    temperature, biases = label_shift.fit_calibration(logits, labels, torch.zeros(4, 4))
    assert 0.2 < temperature < 5
    assert biases.abs().max() < 3


def test_calibration_reads_images_of_held_out_clients_alone(tmp_path, monkeypatch):
    """Each image comes with the log shares of the client that has it."""
    task = tiny_task(PLUGINS["head_tuning"], tmp_path, (WRAPPER,))
    asked = []

    def fit(logits, labels, offsets):
        asked.append((len(logits), labels.tolist(), offsets.unique(dim=0)))
        return torch.ones(()), torch.zeros(4)

    hooks = loader.load_hooks(PLUGINS["head_tuning"], wrappers=[WRAPPER])
    loaded = sys.modules["fedloom_plugins.class_priors.label_shift"]
    monkeypatch.setattr(loaded, "fit_calibration", fit)
    state = initial_state(task, hooks)
    compute_artefact(task.at(1), hooks, state, "label_shift")
    (held_out,) = {*range(6)} - {*task.data.participating}
    images = task.data.train[held_out]
    ((count, labels, offsets),) = asked
    assert count == len(images)
    assert labels == task.data.labels[images].tolist()
    shares = task.data.priors[held_out].clamp(min=1e-4).log()
    assert offsets.tolist() == [(shares - shares.max()).double().tolist()]


def test_without_held_out_clients_the_logits_stay_as_they_are():
    nothing = {0: (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))}
    temperature, biases = label_shift.calibrate(nothing, torch.ones(1, 4))
    assert temperature == 1
    assert biases.tolist() == [0, 0, 0, 0]


def test_estimated_answers_are_of_calibrated_logits_plus_log_shares(tmp_path, monkeypatch):
    """Logits are five times too large; at their temperature, rare classes lose more answers."""
    right_biases = torch.tensor([0.0, 0.5, 0.0, 0.0])
    monkeypatch.setattr(label_shift, "calibrate", lambda *_: (torch.tensor(5.0), right_biases))
    task = tiny_task(PLUGINS["head_tuning"], tmp_path, (WRAPPER,))
    task.data.test[0] = np.resize(task.data.test[0], 200)
    rng = np.random.default_rng(1)
    logits = 5 * (rng.normal(size=(200, 4)) + np.array([1.0, 0.0, 0.0, -1.0]))
    labels = rng.integers(4, size=200)
    answers = answering(logits, labels)
    found = label_shift.answers_under_label_shift(task, answers, torch.zeros(6, 4))
    estimated = accuracies(pd.DataFrame(found), "own", "estimated")[0]

    # by hand: shares at the right temperature, and answers with and without it
    scaled = logits / 5 + right_biases.numpy()
    shares = np.full(4, 0.25)
    for _ in range(100):
        raised = shares * np.exp(scaled)
        shares = (raised / raised.sum(1, keepdims=True)).mean(0)
    right = ((scaled + np.log(shares)).argmax(1) == labels).mean()
    too_sure = ((logits + np.log(shares)).argmax(1) == labels).mean()
    assert estimated == right != too_sure


def test_attackers_have_no_rows(tmp_path):
    """As in evaluations, clients that attack do not answer."""
    plugin, attack = PLUGINS["head_tuning"], PLUGINS["label_flip"]
    task = tiny_task(plugin, tmp_path, (WRAPPER, attack))
    hooks = loader.load_hooks(plugin, wrappers=[WRAPPER, attack])
    attacking = attacking_clients(task, hooks)
    state = initial_state(task, hooks)
    found = pd.DataFrame(compute_artefact(task.at(1), hooks, state, "label_shift"))
    assert attacking
    assert {*found["client_id"]} == {*range(6)} - {*attacking}


def test_classes_of_a_balanced_set_count_alike():
    predicted = torch.tensor([0, 0, 0, 1, 0])
    labels = torch.tensor([0, 0, 0, 1, 1])
    assert label_shift.mean_accuracy_of_classes(predicted, labels) == 0.75


def test_the_table_averages_over_participating_clients(tmp_path):
    rows = []
    for client, taking_part in ((0, True), (1, True), (2, False)):
        for position, labels in enumerate(("own", "balanced")):
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
            "balanced_none": 8.0, "balanced_own": 9.0, "balanced_estimated": 10.0,
        }
    )  # fmt: skip
    assert sys.modules[TABLE.__module__].COLUMNS.keys() == numbers.keys()
