"""Wrappers between clients and server: they pack what leaves and unpack what arrives."""

import shutil

import pytest
import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.contract import checks, driver
from fedloom.contract.tiny import tiny_task
from fedloom.contract.tiny_run import TinyRun, differences_of_trees
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT

WRAPPER = """
kind = "wrapper"
name = "{name}"
title = "W"
[paper]
citation = "C"
"""


def wrapper(folder, name, source):
    """Write a wrapper plugin with this source, and return it."""
    own = folder / "plugins" / name
    own.mkdir(parents=True)
    (own / "method.toml").write_text(WRAPPER.format(name=name))
    (own / "plugin.py").write_text(source)
    manifest.discover_methods.cache_clear()
    return manifest.discover_methods(folder / "plugins")[name]


def run(folder, *wrappers, method="head_tuning"):
    plugin = manifest.find_method(method)
    task = tiny_task(plugin, folder, wrappers)
    return task, loader.load_hooks(plugin, wrappers=wrappers)


@pytest.fixture
def halves(tmp_path):
    return wrapper(tmp_path, "halves", (ROOT / "tests/support/fickle_wrapper.py").read_text())


def test_bytes_are_counted_as_sent_and_hooks_see_what_was_unpacked(tmp_path, halves):
    task, hooks = run(tmp_path, halves)
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    head = task.num_classes * task.backbone.width
    assert row.bytes_up == row.bytes_down == 3 * 2 * head  # three clients, two bytes
    received, _ = prepare_clients(task.at(1), hooks, state, [SERVER_MODEL])
    assert received["params"]["head"].dtype == torch.float32
    kept = state.server["params"]["head"]
    assert torch.equal(received["params"]["head"][0], kept.half().float())
    assert not torch.equal(received["params"]["head"][0], kept)


ORDER = """
from dataclasses import replace
from fedloom.toolbox import hookimpl

SEEN = []

@hookimpl(wrapper=True)
def download():
    sent = yield
    return sent | {{"{name}": len(sent)}}

@hookimpl(wrapper=True)
def deliver():
    sent = yield
    assert "{name}" in sent
    return {{key: value for key, value in sent.items() if key != "{name}"}}

@hookimpl(wrapper=True)
def client_update():
    updates = yield
    SEEN.append("pack {name}")
    return [replace(u, payload={{"inside": u.payload, "by": ord("{name}")}}) for u in updates]

@hookimpl(wrapper=True)
def receive():
    updates = yield
    assert all(update.payload["by"] == ord("{name}") for update in updates)
    return [replace(update, payload=update.payload["inside"]) for update in updates]
"""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_was_packed_last_is_unpacked_first(tmp_path, order):
    """Envelopes lie in envelopes; each wrapper must find its envelope outermost at its turn."""
    two = [wrapper(tmp_path, name, ORDER.format(name=name)) for name in ("a", "b")]
    around = [two[k] for k in order]
    task, hooks = run(tmp_path, *around)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    plain, bare = run(tmp_path)
    expected, _ = train_round(plain.at(1), bare, initial_state(plain, bare))
    assert torch.equal(state.server["params"]["head"], expected.server["params"]["head"])


FEWER = """
from fedloom.toolbox import hookimpl

@hookimpl(wrapper=True)
def receive(task, server, updates):
    return (yield)[::-1][:2]

@hookimpl(wrapper=True)
def aggregate(task, updates):
    server = yield
    assert [u.client for u in updates] == sorted(u.client for u in updates)
    assert set(u.client for u in updates) == set(task.selected[1:])
    return server
"""


def test_aggregate_gets_the_updates_that_receive_leaves_sorted_by_client(tmp_path):
    """Updates that `receive` leaves out were still sent, and their clients' states are kept."""
    task, hooks = run(tmp_path, wrapper(tmp_path, "fewer", FEWER))
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert row.clients == 3 and len(state.clients) == 3
    assert row.bytes_up == 3 * 4 * task.num_classes * task.backbone.width


@pytest.mark.parametrize(
    ("hook", "instead"), [("receive", "aggregate"), ("deliver", "client_update and predict")]
)
def test_a_method_has_no_hook_of_wrappers(tmp_path, hook, instead):
    folder = tmp_path / "plugins" / "head_tuning"
    shutil.copytree(ROOT / "plugins/methods/head_tuning", folder)
    with (folder / "plugin.py").open("a") as file:
        file.write(f"\n\n@fl.hookimpl\ndef {hook}(task):\n    return None\n")
    method = manifest.discover_methods(tmp_path / "plugins")["head_tuning"]
    line = f"plugin.py: '{hook}' is a hook of wrappers; do this in {instead}$"
    with pytest.raises(FedLoomError, match=line):
        loader.load_hooks(method)


SUM = """
from dataclasses import replace
import torch
from fedloom.toolbox import hookimpl, tensor_map

def masks(task, shape):
    drawn = torch.randn(len(task.selected), *shape, generator=task.generator("masks"))
    return {size} * (drawn - drawn.mean(0))

@hookimpl(wrapper=True)
def client_update(task, clients):
    updates = yield
    rows = [task.selected.index(k) for k in clients.ids]
    return [
        replace(u, payload=tensor_map(lambda v: v + masks(task, v.shape)[row], u.payload))
        for row, u in zip(rows, updates, strict=True)
    ]
"""


def test_a_wrapper_that_preserves_the_sum_alone_is_compared_within_a_tolerance(tmp_path):
    """Masks that cancel leave rounding errors behind, which grow with the masks."""
    method = manifest.find_method("head_tuning")
    for name, size, declared, holds in (
        ("small", 2000.0, "sum", True),
        ("undeclared", 2000.0, None, False),
        ("large", 1e5, "sum", False),
    ):
        plain = wrapper(tmp_path / name, name, SUM.format(size=size))
        mask = plain.model_copy(update={"preserves": declared})
        run = TinyRun(method, tmp_path / name, mask)
        if holds:
            checks.ignores_order(run)
            checks.stacks(method, tmp_path / name, mask)
        else:
            with pytest.raises(FedLoomError, match="the order of updates changes the aggregate"):
                checks.ignores_order(run)


FIRST_TWICE = """
from fedloom.toolbox import hookimpl

@hookimpl(wrapper=True)
def receive(updates):
    updates = yield
    return [updates[0], *updates]
"""


def test_rounding_that_the_server_amplifies_is_no_order_of_updates(tmp_path):
    """Where no client changes an entry, Adam divides the rounding of the mean by its own size."""
    method = manifest.find_method("fedopt_pt")
    sparse = manifest.find_method("top_k").with_defaults({"share": 0.1})
    run = TinyRun(method, tmp_path, sparse)
    one, other = (run.aggregate(run.uploads[1][::step]) for step in (1, -1))
    moved = differences_of_trees(one, other)
    assert moved["params/shared_prompts"] > 1e-5 > 1e-8 > moved["moments/exp_avg/shared_prompts"]
    checks.ignores_order(run)
    twice = wrapper(tmp_path, "twice", FIRST_TWICE)
    (tmp_path / "own").mkdir()
    line = "^fedopt_pt with top_k, twice: the order of updates changes the aggregate: "
    with pytest.raises(FedLoomError, match=line):
        checks.ignores_order(TinyRun(method, tmp_path / "own", sparse, twice))


LAST_IN_FRONT = """
from fedloom.toolbox import hookimpl, tensor_map

@hookimpl(wrapper=True)
def aggregate(updates):
    server = yield
    falls = updates[0].client > updates[-1].client
    return tensor_map(lambda value: value + 2e-5 * falls, server)
"""


def test_an_effect_of_the_order_that_is_a_hundred_times_the_rounding_is_refused(tmp_path):
    """Noise of 1e-7 in each of three uploads moves their mean by about 2e-7."""
    shift = wrapper(tmp_path, "shift", LAST_IN_FRONT)
    with pytest.raises(FedLoomError, match=r"shift: the order of .*'params/head' differs by 2e-05"):
        checks.ignores_order(TinyRun(manifest.find_method("head_tuning"), tmp_path, shift))


def test_a_check_of_a_wrapper_says_how_many_methods_are_to_come(caplog):
    caplog.set_level("INFO")
    fleeting = manifest.find_method("dropout")
    methods = [manifest.find_method(name) for name in ("head_tuning", "fedavg_pt")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "CHECKS", (checks.learns,))
        driver.check(fleeting, methods)
    assert caplog.messages == [
        "dropout around head_tuning: method 1/2",
        "dropout around fedavg_pt: method 2/2",
    ]
