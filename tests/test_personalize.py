"""Clients that are personalised before their test: the data, the moment, the report."""

import shutil
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch

from fedloom.common import memory
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.contract import checks
from fedloom.contract.tiny import tiny_task
from fedloom.federated import groups
from fedloom.federated.evaluate import evaluate, evaluate_globally, received_by
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.rows import Confusion
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest
from fedloom.report import metrics
from fedloom.toolbox import linear


@pytest.fixture
def fickle(tmp_path):
    """tests/fickle.py, which trains every client's bias before its test."""
    own = tmp_path / "plugins" / "fickle"
    own.mkdir(parents=True)
    toml = (ROOT / "plugins/head_tuning/method.toml").read_text()
    (own / "method.toml").write_text(toml.replace("head_tuning", "fickle"))
    shutil.copy(ROOT / "tests/fickle.py", own / "plugin.py")
    return manifest.discover(tmp_path / "plugins")["fickle"]


@pytest.fixture
def run(fickle, tmp_path):
    hooks = loader.load_hooks(fickle)
    task = tiny_task(fickle, tmp_path)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    change = sys.modules["fedloom_plugins.fickle.plugin"].CHANGE
    return task.at(1), hooks, state, change


def test_every_client_is_evaluated_without_and_with_it(run):
    task, hooks, state, _ = run
    rows = evaluate(task, hooks, state)
    keys = [(row["client_id"], row["personalized"]) for row in rows]
    assert keys == [(k, flag) for k in range(6) for flag in (False, True)]
    received, clients = received_by(task, hooks, state, [0])  # held out
    own = hooks.personalize(task=task, received=received, clients=clients)
    assert not torch.equal(own["bias"], clients.state["bias"])
    head, images = state.server["params"]["head"], torch.from_numpy(task.data.test[0])
    for row, bias in zip(rows[:2], (clients.state["bias"], own["bias"]), strict=True):
        scores = linear(task.data.tokens(None)[images], head) + bias.detach()
        labels = task.data.labels[images]
        assert row["num_correct"] == (scores.argmax(-1) == labels).sum()
        loss = torch.nn.functional.cross_entropy(scores, labels)
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_it_may_train_once_per_cohort_and_never_per_batch(run, monkeypatch):
    task, hooks, state, change = run
    asked, batches = [], []
    monkeypatch.setattr(groups, "FEATURES_AT_ONCE", 8)  # a client is a cohort of several batches
    change["personalize"] = lambda task, own: asked.append(len(own["bias"])) or own
    change["predict"] = lambda task, logits: batches.append(len(logits)) or logits
    evaluate(task, hooks, state)
    assert asked == [1] * 6 and len(batches) > 12


def test_it_may_train_as_many_clients_at_once_as_a_round_does(run, monkeypatch):
    task, hooks, state, change = run
    asked = []
    change["personalize"] = lambda task, own: asked.append(len(own["bias"])) or own
    whole = evaluate(task, hooks, state)
    monkeypatch.setattr(memory, "FLOATS_AT_ONCE", 2 * 4 * task.backbone.image_floats)
    apart = evaluate(replace(task, forward_inputs=("images",)), hooks, state)
    assert asked == [6, 2, 2, 2], "two clients of four images"
    for one, other in zip(whole, apart, strict=True):
        assert one == other | {"loss": pytest.approx(other["loss"], rel=1e-6)}


def test_it_is_thrown_away(run):
    task, hooks, state, _ = run
    first = evaluate(task, hooks, state)
    kept = {k: own["bias"].clone() for k, own in state.clients.items()}
    assert evaluate(task, hooks, state) == first
    assert all(torch.equal(kept[k], own["bias"]) for k, own in state.clients.items())


def test_what_the_hook_writes_to_does_not_reach_the_row_without_it(run):
    task, hooks, state, change = run
    change["personalize"] = lambda task, own: own
    before = [r for r in evaluate(task, hooks, state) if not r["personalized"]]
    change["personalize"] = lambda task, own: {"bias": own["bias"].add_(100)}
    after = [r for r in evaluate(task, hooks, state) if not r["personalized"]]
    assert after == before


def test_the_servers_model_is_not_personalised(run):
    task, hooks, state, change = run
    asked = []
    change["personalize"] = lambda task, own: asked.append(own) or own
    row = evaluate_globally(task, hooks, state)
    assert row["client_id"] == SERVER_MODEL and row["personalized"] is False
    assert not asked


def test_a_client_that_never_trained_starts_from_what_it_is_sent(run):
    task, hooks, state, change = run
    state.server["params"]["head"] = state.server["params"]["head"] + 1
    module = sys.modules["fedloom_plugins.fickle.plugin"]
    change["unseen_client_state"] = lambda task, own: {"bias": module.SENT["params"]["head"][:, 0]}
    received, clients = received_by(task, hooks, state, [0])
    assert torch.equal(clients.state["bias"][0], state.server["params"]["head"][:, 0])
    assert received["params"]["head"].shape == (1, 4, 16), "without a client axis, and stacked"


def test_personalised_numbers_keep_the_contract(fickle, tmp_path):
    checks.resumes(fickle, tmp_path)
    checks.stacks(fickle, tmp_path)
    checks.leaves_inputs_alone(checks.TinyRun(fickle, tmp_path))


def test_what_is_trained_per_client_there_is_the_clients_own(run):
    """Stacked with others or alone, a client is personalised on its own images."""
    task, hooks, state, _ = run
    received, clients = received_by(task, hooks, state, [1, 3])
    together = hooks.personalize(task=task, received=received, clients=clients)
    for k, client in enumerate((1, 3)):
        received, clients = received_by(task, hooks, state, [client])
        alone = hooks.personalize(task=task, received=received, clients=clients)
        torch.testing.assert_close(alone["bias"][0], together["bias"][k])


@pytest.mark.parametrize(
    ("personalized", "expected"), [(True, [5, 9, 8, 7]), (False, [1, 9, 3, 7])]
)
def test_a_report_takes_one_row_per_client_and_round(tmp_path, personalized, expected):
    """Client 4 and the server's model have no other."""
    rows = pd.DataFrame(
        [(1, 3, False, 1), (1, 4, False, 9), (1, 3, True, 5),
         (2, 3, False, 3), (2, 3, True, 8), (2, SERVER_MODEL, False, 7)],
        columns=["round", "client_id", "personalized", "num_correct"],
    )  # fmt: skip
    rows.to_parquet(tmp_path / "x.parquet")
    found = metrics.evaluation(tmp_path / "x.parquet", personalized)
    found = found.sort_values(["round", "client_id"], key=lambda c: c % 100)
    assert found["num_correct"].tolist() == expected


def test_confusion_counts_the_personalised_answers(run):
    """A table has one row per class and predicted class: of what the report shows by default."""
    task, hooks, state, change = run
    change["personalize"] = lambda task, own: {"bias": own["bias"] + 9 * torch.eye(4)[0]}
    confusion = Confusion()
    rows = evaluate(task, hooks, state, confusion=confusion)
    counts = confusion.table().to_pandas()
    hits = counts[counts["label"] == counts["predicted"]].groupby("client_id")["count"].sum()
    for client in range(6):
        (after,) = (r for r in rows if r["client_id"] == client and r["personalized"])
        assert hits.get(client, 0) == after["num_correct"]
    assert counts["count"].sum() == sum(r["num_test"] for r in rows if r["personalized"])


def test_a_method_without_the_hook_has_one_row_per_client(tiny):
    task, hooks = tiny("head_tuning")
    rows = evaluate(task.at(1), hooks, initial_state(task, hooks))
    assert [row["personalized"] for row in rows] == [False] * 6
    clients = cohort(task, [0], [{}])
    assert hooks.personalize(task=task, received={}, clients=clients) is None


def test_an_evaluation_that_changes_the_servers_state_fails_the_contract(fickle, tmp_path):
    loader.load_hooks(fickle)
    file = fickle.file
    own = "    params = received["
    assert file.read_text().count(own) == 2, "client_update and personalize"
    head, tail = file.read_text().rsplit(own, 1)
    file.write_text(f"{head}    received['params']['head'][0].add_(1)\n{own}{tail}")
    with pytest.raises(FedLoomError, match=r"fickle: an evaluation changes .*'params/head'"):
        checks.leaves_inputs_alone(checks.TinyRun(fickle, tmp_path))
