"""Clients that are personalised before their test: the data, the moment, the report."""

import shutil
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch

from changed_task import with_facts, with_limits
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.contract import checks
from fedloom.contract.tiny import tiny_task
from fedloom.contract.tiny_run import TinyRun
from fedloom.federated.answer_counts import AnswerCounts
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import HOST, PersonalStates, State
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT
from fedloom.report import metrics
from fedloom.toolbox import linear


@pytest.fixture
def fickle(tmp_path):
    """Return fickle.py of tests/support, a method that trains a client's bias before its test."""
    own = tmp_path / "plugins" / "fickle"
    own.mkdir(parents=True)
    toml = (ROOT / "plugins/methods/head_tuning/method.toml").read_text()
    (own / "method.toml").write_text(toml.replace("head_tuning", "fickle"))
    shutil.copy(ROOT / "tests/support/fickle.py", own / "plugin.py")
    return manifest.discover_methods(tmp_path / "plugins")["fickle"]


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
    keys = [(row.client_id, row.personalized) for row in rows]
    assert keys == [(k, flag) for k in range(6) for flag in (False, True)]
    received, clients = prepare_clients(task, hooks, state, [0])  # client 0 is held out
    own = hooks.personalize(task=task, received=received, clients=clients)
    assert not torch.equal(own["bias"], clients.state["bias"])
    head = state.server["params"]["head"]
    images = torch.from_numpy(task.data.test[0])
    for row, bias in zip(rows[:2], (clients.state["bias"], own["bias"]), strict=True):
        scores = linear(task.data.tokens(None)[images], head) + bias.detach()
        labels = task.data.labels[images]
        assert row.num_correct == (scores.argmax(-1) == labels).sum()
        loss = torch.nn.functional.cross_entropy(scores, labels)
        assert row.loss == pytest.approx(loss.item(), rel=1e-5)


def test_it_may_train_once_per_cohort_and_never_per_batch(run):
    task, hooks, state, change = run
    asked = []
    batches = []
    task = with_limits(task, features=8)  # a client is a cohort of several batches
    change["personalize"] = lambda task, own: asked.append(len(own["bias"])) or own
    change["predict"] = lambda task, logits: batches.append(len(logits)) or logits
    evaluate(task, hooks, state)
    assert asked == [1] * 6 and len(batches) > 12


def test_it_may_train_as_many_clients_at_once_as_a_round_does(run):
    task, hooks, state, change = run
    asked = []
    change["personalize"] = lambda task, own: asked.append(len(own["bias"])) or own
    whole = evaluate(task, hooks, state)
    task = with_limits(task, floats=2 * 4 * task.backbone.image_floats)
    apart = evaluate(with_facts(task, forward_inputs=("images",)), hooks, state)
    assert asked == [6, 2, 2, 2], "two clients of four images"
    for one, other in zip(whole, apart, strict=True):
        assert one == replace(other, loss=pytest.approx(other.loss, rel=1e-6))


def test_it_is_thrown_away(run):
    task, hooks, state, _ = run
    first = evaluate(task, hooks, state)
    kept = {k: own["bias"].clone() for k, own in state.clients.items()}
    assert evaluate(task, hooks, state) == first
    assert all(torch.equal(kept[k], own["bias"]) for k, own in state.clients.items())


def test_what_the_hook_writes_to_does_not_reach_the_row_without_it(run):
    task, hooks, state, change = run
    change["personalize"] = lambda task, own: own
    before = [r for r in evaluate(task, hooks, state) if not r.personalized]
    change["personalize"] = lambda task, own: {"bias": own["bias"].add_(100)}
    after = [r for r in evaluate(task, hooks, state) if not r.personalized]
    assert after == before


def test_the_servers_model_is_not_personalised(run):
    task, hooks, state, change = run
    asked = []
    change["personalize"] = lambda task, own: asked.append(own) or own
    row = evaluate_globally(task, hooks, state)
    assert row.client_id == SERVER_MODEL and row.personalized is False
    assert not asked


def test_a_client_that_never_trained_starts_from_what_it_is_sent(run):
    task, hooks, state, change = run
    state.server["params"]["head"] = state.server["params"]["head"] + 1
    module = sys.modules["fedloom_plugins.fickle.plugin"]
    change["unseen_client_state"] = lambda task, own: {"bias": module.SENT["params"]["head"][:, 0]}
    received, clients = prepare_clients(task, hooks, state, [0])
    assert torch.equal(clients.state["bias"][0], state.server["params"]["head"][:, 0])
    assert received["params"]["head"].shape == (1, 4, 16), "without a client axis, and stacked"


@pytest.mark.parametrize(
    ("personalized", "expected"), [(True, [5, 9, 8, 7]), (False, [1, 9, 3, 7])]
)
def test_a_report_takes_one_row_per_client_and_round(tmp_path, personalized, expected):
    """Client 4 and the server's model have a single row, which the report takes in either case."""
    rows = pd.DataFrame(
        [(1, 3, False, 1), (1, 4, False, 9), (1, 3, True, 5),
         (2, 3, False, 3), (2, 3, True, 8), (2, SERVER_MODEL, False, 7)],
        columns=["round", "client_id", "personalized", "num_correct"],
    )  # fmt: skip
    rows.to_parquet(tmp_path / "x.parquet")
    found = metrics.evaluation(tmp_path / "x.parquet", personalized)
    if personalized:
        default = metrics.evaluation(tmp_path / "x.parquet")
        assert default.equals(found), "tables, claims and the choice of a trial take it"
    found = found.sort_values(["round", "client_id"], key=lambda c: c % 100)
    assert found["num_correct"].tolist() == expected


def test_confusion_counts_the_personalised_answers(run):
    """A table counts, by class and predicted class, the answers that a report shows by default."""
    task, hooks, state, change = run
    change["personalize"] = lambda task, own: {"bias": own["bias"] + 9 * torch.eye(4)[0]}
    counted = AnswerCounts()
    rows = evaluate(task, hooks, state, counts=counted)
    counts = counted.confusion().to_pandas()
    hits = counts[counts["label"] == counts["predicted"]].groupby("client_id")["count"].sum()
    for client in range(6):
        (after,) = (r for r in rows if r.client_id == client and r.personalized)
        assert hits.get(client, 0) == after.num_correct
    assert counts["count"].sum() == sum(r.num_test for r in rows if r.personalized)
    bins = counted.calibration().to_pandas()
    assert bins["correct"].sum() == sum(r.num_correct for r in rows if r.personalized)


def test_an_evaluation_that_changes_the_servers_state_fails_the_contract(fickle, tmp_path):
    loader.load_hooks(fickle)
    file = fickle.file
    own = "    params = received["
    assert file.read_text().count(own) == 2, "client_update and personalize"
    head, tail = file.read_text().rsplit(own, 1)
    file.write_text(f"{head}    received['params']['head'][0].add_(1)\n{own}{tail}")
    with pytest.raises(FedLoomError, match=r"fickle: an evaluation changes .*'params/head'"):
        checks.leaves_inputs_alone(TinyRun(fickle, tmp_path))


# ---- clients that never trained have the mean of personal states --------------------------------


def test_the_mean_is_of_the_tensors_at_a_key_of_all_clients():
    drawn = torch.randn(3, 4, dtype=torch.float64)
    states = {k: {"net": {"bias": drawn[k]}, "steps": torch.tensor(k)} for k in range(3)}
    expected = (drawn[0] + drawn[1] + drawn[2]) / 3
    torch.testing.assert_close(PersonalStates(states).mean("net"), {"bias": expected})


def test_without_clients_that_trained_there_is_no_mean():
    with pytest.raises(KeyError, match="head: no client has trained"):
        PersonalStates({}).mean("head")


def test_an_evaluation_computes_it_once(tiny, monkeypatch):
    """Clients that never trained share one mean, which is taken over all that trained."""
    task, hooks = tiny("pfedpg")
    task = replace(task, clients_per_round=2)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    never = task.data.num_clients - len(state.clients)
    assert never > 1
    calls = []
    mean = PersonalStates.mean
    monkeypatch.setattr(PersonalStates, "mean", lambda *of: calls.append(mean(*of)) or calls[-1])
    evaluate(task.at(1), hooks, state)
    assert len(calls) == never
    assert all(each is calls[0] for each in calls)


def test_what_stays_on_clients_lies_on_the_host_until_they_need_it():
    """The device meta, whose tensors have no numbers, stands for a GPU."""
    gpu = torch.device("meta")
    own = {"head": torch.ones(2)}
    start = State.from_tree(State({"pool": torch.ones(2, device=gpu)}).tree(), gpu)
    kept = {"top_k": {"left": torch.ones(1)}}
    state = start.after(State({"pool": torch.ones(2, device=gpu)}, {3: own}, wrappers={3: kept}))
    assert state.server["pool"].device == gpu
    assert state.clients[3]["head"].device == state.wrappers[3]["top_k"]["left"].device == HOST
    assert state.personal[3]["head"].device == state.personal.mean("head").device == gpu
    assert list(state.personal) == [3] and len(state.personal) == 1
