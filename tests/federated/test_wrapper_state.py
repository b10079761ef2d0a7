"""The state of wrappers on clients, their view of uploads, their columns of a round."""

import sys
from dataclasses import replace

import pytest
import torch

from fedloom.common.errors import FedLoomError
from fedloom.contract import checks, driver
from fedloom.contract.tiny import tiny_task
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.rows import ROUNDS_SCHEMA, table_with_metrics
from fedloom.federated.state import State
from fedloom.hooks import loader, manifest
from fedloom.hooks.run_hooks import Hooks
from fedloom.toolbox import hookimpl, tensor_map


@hookimpl(wrapper=True)
def client_update(task, clients):
    """Count on each client how often it took part."""
    counted = []
    for state, update in zip(clients.wrapper_states, (yield), strict=True):
        before = state.get("counting", {"rounds": torch.tensor(0)})["rounds"]
        counted.append(replace(update, wrapper_state={"counting": {"rounds": before + 1}}))
    return counted


@hookimpl(wrapper=True)
def receive(server):
    updates = yield
    for update in updates:
        assert torch.equal(update.received["params"]["head"], server["params"]["head"])
    return updates[::-1]


@hookimpl(wrapper=True)
def init_server():
    return (yield) | {"metrics": {"updates_so_far": 0}}


@hookimpl(wrapper=True)
def aggregate(server, updates):
    ids = [update.client for update in updates]
    assert ids == sorted(ids), "in whatever order `receive` returns them"
    total = server["metrics"]["updates_so_far"] + len(updates)
    return (yield) | {"metrics": {"updates_so_far": total}}


@pytest.fixture
def run(tmp_path):
    """Return run(method), which makes a tiny task, and its hooks inside this module's wrapper."""

    def make(method="p_pt"):
        plugin = manifest.find_method(method)
        task = tiny_task(plugin, tmp_path)
        hooks = Hooks(loader.import_plugin(plugin), [sys.modules[__name__]], (plugin,))
        return task, hooks

    return make


def test_the_state_of_a_wrapper_is_no_part_of_the_personal_state(run):
    task, hooks = run("p_pt")
    hooks._wrappers["receive"] = []
    state = initial_state(task, hooks)
    seen = dict.fromkeys(task.data.participating, 0)
    for number in (1, 2, 3):
        state, row = train_round(task.at(number), hooks, State.from_tree(state.tree()))
        for entry in row.updates:
            seen[entry.client_id] += 1
        counted = {k: int(kept["counting"]["rounds"]) for k, kept in state.wrappers.items()}
        assert counted == {k: count for k, count in seen.items() if count}
    assert max(seen.values()) > 1, "else nothing is handed back"
    assert all(list(own) == ["prompts"] for own in state.clients.values())


def test_the_servers_metrics_are_columns_of_rounds(run):
    task, hooks = run("head_tuning")
    state = initial_state(task, hooks)
    rows = []
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        rows.append(row.columns())
    table = table_with_metrics(rows, ROUNDS_SCHEMA)
    assert table["updates_so_far"].to_pylist() == [3.0, 6.0]
    assert table["clients"].to_pylist() == [3, 3]


def test_states_of_wrappers_come_back_from_a_file_in_order():
    kept = {7: {"a": {"x": torch.ones(2)}}, 2: {"a": {"x": torch.zeros(2)}}}
    before = State({}, {2: {}, 7: {}, 9: {}}, {}, kept)
    after = State.from_tree(tensor_map(torch.clone, before.tree()))
    assert list(after.wrappers) == [2, 7]
    assert torch.equal(after.wrappers[7]["a"]["x"], torch.ones(2))


def test_a_wrapper_must_let_one_method_learn_and_names_those_that_do_not(monkeypatch):
    wrapper = manifest.find_method("trimmed_mean")
    methods = [manifest.find_method(name) for name in ("head_tuning", "p_pt")]
    stuck = {"p_pt"}

    def learns(method, folder, *wrappers):
        if method.name in stuck:
            raise checks.NotLearningError(f"{method.name}: does not learn")

    monkeypatch.setattr(driver, "CHECKS", (learns,))
    done = driver.check(wrapper, methods)
    assert done.endswith("around head_tuning, p_pt; the loss does not fall in these few rounds "
                         "around p_pt")  # fmt: skip
    stuck.add("head_tuning")
    with pytest.raises(FedLoomError, match="does not learn"):
        driver.check(wrapper, methods)
    with pytest.raises(FedLoomError, match="p_pt: does not learn"):
        driver.check(methods[1], methods)
