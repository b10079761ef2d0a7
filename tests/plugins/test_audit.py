"""Audits: what the loss of an image tells of its membership, and a head's change of classes."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedloom.config.kinds import KINDS
from fedloom.config.settings import ResolvedSeeds
from fedloom.contract.tiny import tiny_task
from fedloom.contract.tiny_run import upload
from fedloom.federated.evaluate import compute_artefact
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.toolbox import gaussian_epsilon
from first_round import module

IDS = [1, 2, 3, 4, 5]  # the participating clients of the tiny task
audit = module("audit", "plugin")
PRIVACY = KINDS["tables"]["privacy"]
privacy = sys.modules[PRIVACY.__module__]


@pytest.fixture
def run(tmp_path):
    """Return run(*wrappers, method, **options of the audit), which makes a task and its hooks."""

    def make(*names, method="head_tuning", seed=0, **options):
        plugin = manifest.find_method(method)
        around = tuple(manifest.find_method(name) for name in names)
        task = replace(tiny_task(plugin, tmp_path, around), seed=seed)
        vars(task.wrappers["audit"]).update(options)
        return task, loader.load_hooks(plugin, wrappers=around)

    return make


def membership(task, hooks, state):
    return pd.DataFrame(compute_artefact(task.at(1), hooks, state, "membership"))


# ---- who is a member ------------------------------------------------------------------------


@pytest.mark.parametrize(("withheld", "kept"), [(0.5, 0.5), (0.25, 0.75), (0.999, 0.0)])
def test_a_client_trains_on_the_share_that_it_does_not_withhold(run, withheld, kept):
    task, hooks = run("audit", withheld=withheld)
    data = hooks.training_data(task=task.at(3))
    for k, rows in enumerate(task.data.train):
        members = data.train[k]
        expected = max(1, round(kept * len(rows))) if k in IDS else len(rows)
        assert len(members) == expected and set(members) <= set(rows)
        counts = np.bincount(task.data.labels.numpy()[members], minlength=4) / len(members)
        np.testing.assert_allclose(data.priors[k].numpy(), counts, atol=1e-6)
    assert all(map(np.array_equal, data.test, task.data.test))


def test_members_follow_from_the_seed_alone(run):
    task, hooks = run("audit")
    first, later = (hooks.training_data(task=task.at(n)).train for n in (1, 7))
    assert all(map(np.array_equal, first, later))
    other, _ = run("audit", seed=1)
    alike = ResolvedSeeds(initialisation=5)
    for one, two in (
        (task, other),
        (replace(task, fixed_seeds=alike), replace(other, fixed_seeds=alike)),
    ):
        first, again = (hooks.training_data(task=each).train for each in (one, two))
        assert not all(map(np.array_equal, first, again))


def test_the_artefact_has_every_training_image_and_marks_the_members(run):
    task, hooks = run("audit")
    state = initial_state(task, hooks)
    table = membership(task, hooks, state)
    members = hooks.training_data(task=task).train
    for client, rows in table.groupby("client_id"):
        assert set(rows["image"]) == set(task.data.train[client])
        assert set(rows["image"][rows["member"]]) == set(members[client])
    assert set(table["client_id"]) == set(IDS)
    pd.testing.assert_frame_equal(table, membership(task, hooks, state))


def test_losses_are_those_of_the_servers_head_in_float64(run):
    task, hooks = run("audit")
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    table = membership(task, hooks, state)
    rows = torch.tensor(table["image"])
    features = task.data.tokens(None)[rows].double().numpy()
    logits = features @ state.server["params"]["head"].double().numpy().T
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    own = chances[np.arange(len(rows)), task.data.labels[rows].numpy()]
    np.testing.assert_allclose(table["loss"], -np.log(own), rtol=1e-5)
    np.testing.assert_allclose(table["confidence"], np.log(own / (1 - own)), rtol=1e-4, atol=1e-5)


def test_a_confidence_near_one_keeps_its_digits():
    logits = torch.tensor([[60.0, 0.0], [0.0, 60.0]])
    losses, confidences = audit.scores(logits, torch.tensor([0, 0]))
    np.testing.assert_allclose(confidences, [60, -60])
    np.testing.assert_allclose(losses, [np.exp(-60), 60], atol=1e-15)


def test_a_method_under_audit_keeps_its_own_tables(run):
    task, hooks = run("audit", method="pep_fedpt")
    state = initial_state(task, hooks)
    assert "vector" in compute_artefact(task.at(1), hooks, state, "class_prompts")
    assert len(membership(task, hooks, state)) == sum(len(task.data.train[k]) for k in IDS)


# ---- membership inference -------------------------------------------------------------------


def frame(member, score, client=1):
    return pd.DataFrame(
        {
            "client_id": client,
            "image": range(len(member)),
            "member": member,
            "confidence": score,
            "loss": -np.asarray(score),
        }
    )


def test_auc_counts_the_pairs_that_are_in_order():
    rng = np.random.default_rng(0)
    member = rng.random(60) < 0.5
    score = np.round(rng.normal(member, 1), 1)  # scores have ties
    pairs = [np.sign(a - b) / 2 + 0.5 for a in score[member] for b in score[~member]]
    bounds = [x for x in score if (score[~member] >= x).mean() <= 0.1]
    rate = max((score[member] >= x).mean() for x in bounds)
    found = privacy.attack(pd.Series(member), pd.Series(score), 0.1)
    np.testing.assert_allclose(found, [100 * np.mean(pairs), 100 * rate])


def test_a_model_that_memorises_is_found_out():
    member = np.arange(40) < 20
    assert privacy.attack(pd.Series(member), pd.Series(10.0 * member), 0.01) == (100, 100)


def test_the_attacker_may_take_as_many_non_members_as_the_rate_says():
    member = np.arange(40) < 20
    score = pd.Series(1.0 * (np.arange(40) < 21))  # of 20 non-members, one looks like a member
    assert privacy.attack(pd.Series(member), score, 0.05)[1] == 100
    assert privacy.attack(pd.Series(member), score, 0.04)[1] == 0


def test_a_model_that_knows_nothing_tells_nothing(run):
    task, hooks = run("audit")
    table = membership(task, hooks, initial_state(task, hooks))  # the head is zero
    assert privacy.attack(table["member"], -table["loss"], 0.05)[0] == 50
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        member = pd.Series(np.arange(200) < 100)
        found.append(privacy.attack(member, pd.Series(rng.normal(size=200)), 0.05)[0])
    deviation = 100 * np.sqrt((100 + 100 + 1) / (12 * 100 * 100))  # of one run, by Mann and Whitney
    assert abs(np.mean(found) - 50) < 3 * deviation / np.sqrt(200)
    assert 0.8 * deviation < np.std(found) < 1.2 * deviation


def test_the_ratio_compares_an_image_with_the_runs_that_withheld_it():
    own = frame([True, True, False, False], [5.0, 3.0, 2.0, 1.0])
    one = frame([False, True, False, True], [4.0, 9.0, 1.0, 9.0])
    two = frame([False, True, True, True], [2.0, 9.0, 9.0, 9.0])
    known = privacy.score_images(own, [one, two])
    assert known["image"].tolist() == [0, 2], "images 1 and 3 were withheld by none"
    assert known["score"].tolist() == [5 - (4 + 2) / 2, 2 - 1]
    assert privacy.score_images(own, []).empty
    assert privacy.score_images(own, [one.assign(client_id=2)]).empty, "another client's model"


def test_a_table_reads_the_runs_of_the_other_seeds(tmp_path):
    paths = []
    for seed in (0, 1):
        path = tmp_path / f"seed{seed}" / "artefacts" / "membership.parquet"
        path.parent.mkdir(parents=True)
        frame([seed == 0, seed == 1] * 10, [1.0 * (seed == 0), 1.0 * (seed == 1)] * 10).to_parquet(
            path
        )
        paths.append(path)
    assert privacy._artefact_with_seed(SimpleNamespace(artefact=paths[0], seed=0), 1) == paths[1]


# ---- what an upload tells of classes --------------------------------------------------------


def test_shares_follow_from_one_step_of_a_head_where_a_class_is_absent():
    mean = np.array([2.0, -1.0, 0.5])
    shares = np.array([0.5, 0.3, 0.2, 0.0])
    change = 0.1 * np.outer(shares - 1 / 4, mean)  # one step from a zero head, features `mean`
    for scale in (1, 1e-3):  # a clip scales the change
        guess = audit.guessed_shares(torch.tensor(scale * change), torch.tensor(mean))
        np.testing.assert_allclose(guess, shares, atol=1e-12)


def test_a_head_that_did_not_change_tells_nothing():
    guess = audit.guessed_shares(torch.zeros(4, 3), torch.ones(3))
    assert guess.tolist() == [0.25] * 4


def test_distances_are_those_of_the_trained_images_and_columns_of_the_rounds(run):
    task, hooks = run("audit")
    state = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, state)
    members = hooks.training_data(task=task).train
    blind = []
    for update in row.updates:
        labels = task.data.labels.numpy()[members[update.client_id]]
        shares = np.bincount(labels, minlength=4) / len(labels)
        assert update.metrics["class_distance_blind"] == pytest.approx(abs(shares - 0.25).sum() / 2)
        assert 0 <= update.metrics["class_distance"] < update.metrics["class_distance_blind"]
        blind.append(update.metrics["class_distance_blind"])
    assert row.metrics["class_distance_blind"] == pytest.approx(np.mean(blind))


def test_on_a_stream_the_truth_is_of_the_images_of_this_round(tmp_path):
    plugin = manifest.find_method("head_tuning")
    around = (manifest.find_method("audit"),)
    arrivals = {"of": "classes", "at": [2], "keep": False}
    partition = {"scheme": "iid", "clients": 6, "held_out": 0, "arrivals": arrivals}
    task = tiny_task(plugin, tmp_path, around, partition=partition).at(2)
    hooks = loader.load_hooks(plugin, wrappers=around)
    _, row = train_round(task, hooks, initial_state(task, hooks))
    members = hooks.training_data(task=task).train
    for update in row.updates:
        labels = task.data.labels.numpy()[members[update.client_id]]
        shares = np.bincount(labels, minlength=4) / len(labels)
        assert update.metrics["class_distance_blind"] == pytest.approx(abs(shares - 0.25).sum() / 2)


def test_of_an_upload_without_a_head_the_guess_is_blind(run):
    task, hooks = run("audit", method="singleset_vpt")
    _, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert row.metrics["class_distance"] == row.metrics["class_distance_blind"] > 0


# ---- beside other wrappers ------------------------------------------------------------------


def test_an_audit_leaves_updates_as_they_are(run):
    task, hooks = run("audit")
    members = hooks.training_data(task=task)
    plain = loader.load_hooks(manifest.find_method("head_tuning"))
    state = initial_state(task, plain)
    alone = upload(replace(task, data=members), plain, 1, state, IDS)[1]
    seen = upload(task, hooks, 1, state, IDS)[1]
    for one, other in zip(alone, seen, strict=True):
        assert torch.equal(one.payload["params"]["head"], other.payload["params"]["head"])
        assert one.num_examples == other.num_examples


@pytest.mark.parametrize("names", [("audit", "dp_gaussian"), ("dp_gaussian", "audit")])
def test_noise_and_epsilon_stand_under_an_audit(run, names):
    task, hooks = run(*names)
    _, both = train_round(task.at(1), hooks, initial_state(task, hooks))
    task, hooks = run("audit")
    _, audited = train_round(task.at(1), hooks, initial_state(task, hooks))
    blind = pytest.approx(audited.metrics["class_distance_blind"], rel=1e-6)
    assert both.metrics["class_distance_blind"] == blind
    assert both.metrics["epsilon"] == gaussian_epsilon(1.0, 3 / 5, 1, 1e-5)
