"""The wrappers of examples/: what they send, leave out and choose."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from example_runs import changed, runs_of_examples, update
from fedloom.common.errors import FedLoomError
from fedloom.federated.round import download_to, initial_state, select_for_round, train_round
from fedloom.federated.state import Participation, State
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest
from fedloom.toolbox import stack


@pytest.fixture
def run(tmp_path):
    """Return run(name, **options), which makes a task and hooks of an example.

    A wrapper is put around Head-Tuning.
    """
    return runs_of_examples(tmp_path)


pytestmark = pytest.mark.slow


def test_topk_sends_the_largest_changes_and_the_server_adds_them(run):
    task, hooks = run("topk", share=0.2)
    start = initial_state(task, hooks)
    at = replace(task.at(1), selected=(1, 2, 3))
    received = stack(download_to(at, hooks, start, [1, 2, 3])[1])
    clients = cohort(task, [1, 2, 3], [{}] * 3)
    plain = loader.load_hooks(manifest.find_method("head_tuning"))
    whole = plain.client_update(task=at, received=received, clients=clients)
    sent = hooks.client_update(task=at, received=received, clients=clients)
    sent = [replace(update, received={"params": start.server["params"]}) for update in sent]
    got = hooks.receive(task=at, server=start.server, updates=sent)
    old = start.server["params"]["head"].double().numpy().ravel()
    count = math.ceil(0.2 * old.size)
    for one, packed, unpacked in zip(whole, sent, got, strict=True):
        assert packed.payload["sparse"]["head"]["values"].shape == (count,)
        change = one.payload["params"]["head"].double().numpy().ravel() - old
        kept = np.argsort(-np.abs(change))[:count]
        expected = old.copy()
        expected[kept] += change[kept]
        actual = unpacked.payload["params"]["head"].numpy().ravel()
        np.testing.assert_allclose(actual, expected, atol=1e-6)
        assert "sparse" in packed.payload, "the sent update is unchanged"
    _, row = train_round(task.at(1), hooks, start)
    assert row.bytes_up == 3 * count * (4 + 4)


def test_krum_leaves_an_attacker_out(run):
    task, hooks = run("krum_receive", byzantine=1, kept=2)
    points = [[0.0, 0.0], [0.1, 0.0], [0.0, 0.3], [50.0, 50.0], [0.2, 0.1]]
    updates = [update(k, head=torch.tensor(p)) for k, p in enumerate(points)]
    kept = hooks.receive(task=task, server={}, updates=updates)
    # squared distances to the two nearest: 0.05 + 0.01, 0.02 + 0.01, 0.08 + 0.09, ..., 0.02 + 0.05
    assert [u.client for u in kept] == [1, 0]
    assert {id(update) for update in kept} <= {id(update) for update in updates}


def test_krum_refuses_too_few_updates(run):
    task, hooks = run("krum_receive", byzantine=1)
    updates = [update(k, head=torch.zeros(2)) for k in range(4)]
    with pytest.raises(
        FedLoomError, match="krum_receive: 4 updates are too few for byzantine: 1; raise"
    ):
        hooks.receive(task=task, server={}, updates=updates)


@pytest.mark.parametrize(
    ("around", "aggregation"), [("head_tuning", "plain"), ("fedavg_pt", "weighted")]
)
def test_masks_cancel_in_the_mean(run, tiny, around, aggregation):
    """A method declares the weights of the server's sum, by which the wrapper divides its masks."""
    task, hooks = run("masks", around=around)
    assert task.aggregation == aggregation
    state, _ = train_round(*started(task, hooks))
    plain, _ = train_round(*started(*tiny(around)))
    torch.testing.assert_close(
        state.server["params"]["head"], plain.server["params"]["head"], atol=1e-4, rtol=0
    )


def started(task, hooks):
    return task.at(1), hooks, initial_state(task, hooks)


def uploads(task, hooks, ids):
    at = replace(task.at(1), selected=tuple(ids))
    start = initial_state(task, hooks)
    received = stack(download_to(at, hooks, start, ids)[1])
    clients = cohort(task, ids, [{}] * len(ids))
    updates = hooks.client_update(task=at, received=received, clients=clients)
    return at, [replace(u, client=k) for k, u in zip(ids, updates, strict=True)]


def test_masks_of_lost_clients_are_taken_out(run, tiny):
    task, hooks = run("masks")
    at, sent = uploads(task, hooks, [1, 2, 3, 4])
    _, true = uploads(*tiny("head_tuning"), [1, 2, 3, 4])
    arrived = [sent[0], sent[3]]
    got = hooks.receive(task=at, server={}, updates=arrived)
    total = sum(u.payload["params"]["head"] for u in got)
    expected = sum(true[k].payload["params"]["head"] for k in (0, 3))
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=0)
    assert changed(got[0].payload["params"]["head"], true[0].payload["params"]["head"])


def test_power_of_choice_takes_the_highest_losses_of_the_candidates(run):
    task, hooks = run("power_of_choice", candidates=4)
    losses = {1: 0.3, 2: 0.9, 3: 0.1, 4: 0.5}  # client 5 never trained
    server = initial_state(task, hooks).server
    known = {k: Participation(1, 1, loss) for k, loss in losses.items()}
    left_out = set()
    for number in range(1, 60):
        chosen = select_for_round(task.at(number), hooks, State(server, {}, known))
        out = set(task.data.participating) - set(chosen)
        left_out |= {frozenset(out)}
        # of five clients four are compared: out are one that was not drawn, and the lowest of four
        ranked = sorted(task.data.participating, key=lambda k: losses.get(k, np.inf))
        assert len(chosen) == 3 and (ranked[0] in out or out == set(ranked[:2]))
    assert len(left_out) > 2


def test_power_of_choice_draws_candidates_by_their_images(run):
    task, hooks = run("power_of_choice", candidates=1)
    task = replace(task, clients_per_round=1)
    state = initial_state(task, hooks)
    drawn = [select_for_round(task.at(t), hooks, state)[0] for t in range(1, 1001)]
    images = np.array([len(task.data.train[k]) for k in task.data.participating])
    share = np.array([drawn.count(k) for k in task.data.participating]) / len(drawn)
    assert images.std() > 0
    np.testing.assert_allclose(share, images / images.sum(), atol=4 * 0.5 / 1000**0.5)
