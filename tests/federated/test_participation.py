"""Who takes part and how far: availability, selection by history, partial work, lost uploads."""

import math
import shutil
import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch

import fedloom.toolbox as fl
from changed_task import with_training
from fedloom.contract import checks
from fedloom.contract.tiny import tiny_job, tiny_task
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.rows import CLIENTS_SCHEMA, table_with_metrics
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest
from fedloom.report import metrics
from fedloom.toolbox import cross_entropy, linear, stack, train_locally
from refusals import refused

DROPOUT = manifest.find_method("dropout", role="wrapper")


@pytest.fixture
def run(tmp_path):
    """Return run(lost=..., ...), which makes a task with the wrapper dropout, and its hooks."""

    def make(method="head_tuning", **options):
        plugin = manifest.find_method(method)
        task = tiny_task(plugin, tmp_path, (DROPOUT,))
        vars(task.wrappers["dropout"]).update({"lost": 0.0} | options)
        return task, loader.load_hooks(plugin, wrappers=(DROPOUT,))

    return make


def rounds(task, hooks, count, state=None):
    state = state or initial_state(task, hooks)
    rows = []
    for number in range(1, count + 1):
        state, row = train_round(task.at(number), hooks, state)
        rows += [update.columns() for update in row.updates]
    return state, pd.DataFrame(rows)


def test_without_dropout_nothing_changes(run, tiny):
    state, rows = rounds(*run(), 2)
    plain, _ = rounds(*tiny("head_tuning"), 2)
    assert torch.equal(state.server["params"]["head"], plain.server["params"]["head"])
    assert rows["received"].all() and (rows["work"] == 1).all()


def test_a_rounds_row_has_the_clients_mean_losses_and_the_sum_of_their_bytes(tiny):
    uneven = {"scheme": "dirichlet", "kind": "client", "alpha": 0.5, "clients": 6, "held_out": 0}
    task, hooks = tiny("fedtpg", partition=uneven)  # a client guesses among its own classes
    task = replace(task, clients_per_round=6)
    _, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    clients = pd.DataFrame([update.columns() for update in row.updates])
    assert len(clients) == row.clients == 6
    for name in ("train_loss", "guessing_loss"):
        assert clients[name].nunique() > 1
        assert getattr(row, name) == pytest.approx(clients[name].mean(), rel=1e-12)
    for name in ("bytes_up", "bytes_down"):
        assert getattr(row, name) == clients[name].sum() > 0


def test_a_lost_upload_has_no_part_in_the_servers_step(run):
    task, hooks = run(lost=0.5)
    for number in range(1, 20):
        state, row = train_round(task.at(number), hooks, initial_state(task, hooks))
        arrived = [r.client_id for r in row.updates if r.received]
        if len(arrived) == 1 < row.clients:
            break
    sent = row.updates[0].bytes_up
    assert row.bytes_up == row.clients * sent, "what is lost was sent"
    assert row.bytes_up_used == sent
    alone = replace(task, selected=tuple(arrived), wrappers={})
    plain = loader.load_hooks(manifest.find_method("head_tuning"))
    clients = cohort(task, arrived, [{}])
    received = stack([{"params": initial_state(task, hooks).server["params"]}])
    (update,) = plain.client_update(task=alone.at(number), received=received, clients=clients)
    torch.testing.assert_close(state.server["params"]["head"], update.payload["params"]["head"])


def test_the_share_of_lost_uploads_is_that_of_the_option(run):
    task, _ = run(lost=0.3)
    plugin = sys.modules["fedloom_plugins.dropout.plugin"]
    drawn = [plugin.draw(task.at(t), "lost", k) < 0.3 for t in range(1, 400) for k in range(6)]
    assert abs(sum(drawn) / len(drawn) - 0.3) < 4 * math.sqrt(0.21 / len(drawn))


def test_one_upload_arrives_at_least(run):
    _, rows = rounds(*run(lost=1.0), 5)
    assert (rows.groupby("round")["received"].sum() == 1).all()


def test_partial_work_is_a_share_of_the_steps_rounded_up(run, monkeypatch):
    task, hooks = run(partial=1.0)
    steps = []

    def watched(task, loss, received, clients):
        trained = train_locally(task, loss, received, clients)
        steps.extend(zip(clients.ids, trained.steps, strict=True))
        return trained

    monkeypatch.setattr(fl, "train_locally", watched)
    _, rows = rounds(task, hooks, 3)
    assert ((rows["work"] > 0) & (rows["work"] < 1)).all() and rows["work"].nunique() == len(rows)
    whole = [2 * math.ceil(len(task.data.train[k]) / 4) for k in rows["client_id"]]  # 2 epochs
    expected = [math.ceil(w * n) for w, n in zip(rows["work"], whole, strict=True)]
    assert [n for _, n in steps] == expected and min(expected) >= 1


def test_partial_work_stacks(tmp_path):
    task = {"partial": 0.6, "lost": 0.2, "trace": []}
    wrapper = DROPOUT.with_defaults(task)
    checks.stacks(manifest.find_method("scaffold_pt"), tmp_path, wrapper)


def test_a_trace_says_who_can_be_selected(run):
    task, hooks = run(trace=[[1, 2], [0, 3, 4, 5], [5]])
    _, rows = rounds(task, hooks, 6)
    found = rows.groupby("round")["client_id"].apply(list).tolist()
    assert found == [[1, 2], [3, 4, 5], [5], [1, 2], [3, 4, 5], [5]], "client 0 is held out"


def test_a_selection_may_change_its_list_and_is_checked_nevertheless(tiny, monkeypatch):
    task, hooks = tiny("fedvpt")

    def select(available, **_):
        available += [available[0], 99]
        return available

    monkeypatch.setattr(hooks, "select_clients", select)
    with refused("select_clients", "twice"):
        train_round(task.at(1), hooks, initial_state(task, hooks))


GREEDY = """

@fl.hookimpl
def select_clients(task, available, history):
    SEEN.append(history)
    fresh = [k for k in available if k not in history.train_loss]
    known = sorted(history.train_loss, key=history.train_loss.get, reverse=True)
    return (fresh + known)[: task.clients_per_round]


SEEN = []
"""


@pytest.fixture
def greedy(tmp_path):
    """Return Head-Tuning that selects clients without a known loss, then those with the highest."""
    folder = tmp_path / "plugins" / "head_tuning"
    shutil.copytree(manifest.find_method("head_tuning").folder, folder)
    with (folder / "plugin.py").open("a") as file:
        file.write(GREEDY)
    manifest.discover_methods.cache_clear()
    return manifest.discover_methods(tmp_path / "plugins")["head_tuning"]


def test_selection_sees_losses_counts_and_rounds(greedy, tmp_path):
    task = tiny_task(greedy, tmp_path)
    hooks = loader.load_hooks(greedy)
    _, rows = rounds(task, hooks, 4)
    seen = sys.modules["fedloom_plugins.head_tuning.plugin"].SEEN
    assert seen[0].train_loss == seen[0].last_round == {}
    assert seen[0].rounds == dict.fromkeys(task.data.participating, 0)
    assert seen[0].num_examples == {k: len(task.data.train[k]) for k in task.data.participating}
    for number in (2, 3, 4):
        before = rows[rows["round"] < number]
        last = before.groupby("client_id").last()
        assert seen[number - 1].train_loss == last["train_loss"].to_dict()
        assert seen[number - 1].last_round == last["round"].to_dict()
        counts = before["client_id"].value_counts()
        assert seen[number - 1].rounds == {k: counts.get(k, 0) for k in task.data.participating}
    assert rows[rows["round"] == 1]["client_id"].tolist() == [1, 2, 3]
    losses = rows[rows["round"] < 3].groupby("client_id")["train_loss"].last()
    assert set(rows[rows["round"] == 3]["client_id"]) == set(losses.nlargest(3).index)


def test_a_lost_update_tells_the_server_no_loss(run):
    task, hooks = run(lost=1.0)
    state, rows = rounds(task, hooks, 1)
    arrived = set(rows[rows["received"]]["client_id"])
    assert {k for k, v in state.participation.items() if v.train_loss is not None} == arrived
    assert all(entry.rounds == 1 for entry in state.participation.values())


def test_selection_by_history_resumes_to_the_bit(greedy, tmp_path):
    """Four rounds in one job equal two jobs of two rounds: the second knows the first's losses."""
    checks.resumes(greedy, tmp_path)


def table(rows):
    return table_with_metrics(rows, CLIENTS_SCHEMA).to_pandas()


ROW = {
    "round": 1, "client_id": 3, "num_examples": 9, "work": 1.0, "received": True,
    "bytes_up": 4, "bytes_down": 8, "train_loss": 0.5,
}  # fmt: skip


def test_every_metric_is_a_column_of_clients_parquet():
    frame = table([ROW, ROW | {"client_id": 4, "steps": 7}])
    assert list(frame) == [*list(ROW)[:7], "steps", "train_loss"]
    assert frame["steps"].tolist()[1] == 7 and math.isnan(frame["steps"][0])


def test_a_runs_rows_are_joined_from_its_jobs(tmp_path):
    """A metric that appears first in the second job is null in the rows of the first job."""
    run = tiny_job(manifest.find_method("head_tuning")).spec.run
    parts = []
    for end, extra in ((1, {}), (2, {"steps": 3})):
        parts.append(tmp_path / f"{end}.parquet")
        metrics.write_table(
            parts[-1], table_with_metrics([ROW | {"round": end} | extra], CLIENTS_SCHEMA)
        )
    metrics.join(parts, tmp_path / "clients.parquet", run, {})
    frame = metrics.frame(tmp_path / "clients.parquet")
    assert frame["round"].tolist() == [1, 2] and frame["method"].tolist() == ["head_tuning"] * 2
    assert math.isnan(frame["steps"][0]) and frame["steps"][1] == 3


def head_loss(task, params, received, clients, batch):
    return cross_entropy(linear(batch.features, params["head"]), batch.labels)


def trained(task, clients, **arguments):
    head = torch.zeros(4, task.backbone.width)
    received = stack([{"params": {"head": head}} for _ in clients])
    members = cohort(task, clients, [{} for _ in clients], [0.5, *[1.0] * (len(clients) - 1)])
    return train_locally(task.at(1), head_loss, received, members, **arguments)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_local_steps_are_as_many_for_every_client(tiny, count):
    """A client that has used all images begins another epoch, until it has made all steps."""
    task, _ = tiny("head_tuning")
    clients = task.data.participating
    task = with_training(task, local_steps=count)
    found = trained(task, clients)
    assert found.steps == [math.ceil(count / 2)] + [count] * (len(clients) - 1)
    assert trained(task, clients, epochs=1).steps[1:] == [
        math.ceil(len(task.data.train[k]) / 4) for k in clients[1:]
    ], "a method that names its epochs gets them"


def test_local_steps_equal_the_epochs_they_fill(tiny):
    task, _ = tiny("head_tuning")
    client = task.data.participating[1]
    by_epochs = trained(task, [0, client])
    task = with_training(task, local_steps=2 * math.ceil(len(task.data.train[client]) / 4))
    by_steps = trained(task, [0, client])
    assert torch.equal(by_steps.params["head"][1], by_epochs.params["head"][1])
