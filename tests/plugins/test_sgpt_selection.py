"""SGPT: which group an image is put into, in training and in a test."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from changed_task import with_training
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate import compute_artefact
from fedloom.federated.groups import iterate_examples
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.toolbox import SERVER_MODEL, cosine_similarity
from sgpt_cases import drawn_task, prompted, reference_group, reference_query, selection


@pytest.fixture
def drawn(tiny):
    """Return make(**options): a task, its hooks, and two clients with different parameters."""
    return drawn_task(tiny)


@pytest.mark.parametrize(("variant", "floor"), [("paper", 1e-12), ("released", 5e-4)])
@pytest.mark.parametrize(
    "counted", [(0, 0, 0, 0), (7, 0, 40, 0), (1, 0, 4000, 0), (10, 30, 20, 40)]
)
def test_selection_while_training_is_equation_6(variant, floor, counted):
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(2, 50, 8))
    keys = rng.normal(size=(2, 4, 8))
    selected = np.array([counted, counted[::-1]], float)
    cosine = cosine_similarity(*(torch.from_numpy(x) for x in (queries, keys)))
    options = SimpleNamespace(frequency=True, majority=False, variant=variant)
    mask = torch.ones(2, 50, dtype=torch.bool)
    found = selection.group_while_training(options, cosine, torch.from_numpy(selected), mask)
    for k in range(2):
        expected = [reference_group(h, keys[k], selected[k], floor) for h in queries[k]]
        assert found[k].tolist() == expected
        assert len(set(expected)) > 1
    if variant == "paper" and 0 in counted and any(counted):
        assert set(found[0].tolist()) == {1, 3}, "those that nobody chose yet, by the nearest key"


def test_a_batch_takes_the_group_of_most_of_its_images():
    cosine = torch.eye(3)[torch.tensor([[0, 1, 1, 2, 2, 2], [2, 2, 0, 0, 0, 1]])]  # [K, B, G]
    mask = torch.tensor([[True] * 3 + [False] * 3, [True] * 6])
    options = SimpleNamespace(frequency=False, majority=True)
    found = selection.group_while_training(options, cosine, None, mask)
    assert found.tolist() == [[1] * 6, [0] * 6]


def selections(task, hooks, keys, released, between_clients):
    """Return selections by client of two rounds [6, G], image by image, if nothing is learnt."""
    features = task.data.tokens(None)
    so_far = np.zeros(4)
    rows = []
    for number in (1, 2):
        seen = so_far.copy()
        for client in sorted(select_for_round(task.at(number), hooks, initial_state(task, hooks))):
            own = np.zeros(4)
            for row in task.data.train[client]:
                h = reference_query(None, features[row], 0, released)
                own[reference_group(h, keys, seen, 5e-4 if released else 1e-12)] += 2  # epochs
            seen = seen + own if between_clients else seen
            so_far = so_far + own
            rows.append(own.tolist())
    return rows


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_q_changes_between_rounds_or_between_clients(tiny, variant):
    """The paper's q has the counts of earlier rounds, and is the same for all clients.

    The released code also counts the clients that trained before in the same round.
    """
    task, hooks = tiny("sgpt", groups=4, variant=variant)
    task = with_features(task, np.ones((4, 16)), 2.0)
    task = with_training(task, lr=0.0)
    state = initial_state(task, hooks)
    released = variant == "released"
    keys = state.server["params"]["keys"].double().numpy()
    expected = selections(task, hooks, keys, released, between_clients=released)
    assert expected != selections(task, hooks, keys, released, between_clients=not released)
    for number in (1, 2):
        state, _ = train_round(task.at(number), hooks, state)
    assert state.server["history"]["selected"].tolist() == expected
    assert state.server["constants"]["selected"].tolist() == np.sum(expected, 0).tolist()


def with_features(task, centres, noise):
    """Return the task with other cached features: class centres [C, d] and noise."""
    rng = np.random.default_rng(0)
    labels = task.data.labels
    features = centres[labels.numpy()] + noise * rng.normal(size=(len(labels), centres.shape[1]))
    cached = torch.from_numpy(features).float()
    return replace(task, data=replace(task.data, tokens=lambda place: cached))


def test_the_frequencies_spread_a_collapsed_start(tiny):
    """All images lie in one cone around the first key; plain argmax never leaves it."""
    centres = np.full((4, 16), 0.0)
    centres[:, 0] = 3
    centres[range(4), range(1, 5)] = 1
    used = {}
    for frequency, rounds in ((True, 12), (False, 3)):
        task, hooks = tiny("sgpt", groups=4, frequency=frequency)
        task = with_features(task, centres, 0.05)
        task = with_training(task, lr=0.5)
        state = initial_state(task, hooks)
        state.server["params"]["keys"] = torch.eye(16)[[0, 9, 10, 11]]
        images = compute_artefact(task, hooks, state, "groups")
        assert set(images["group"]) == {0}, "collapsed"
        for number in range(1, rounds + 1):
            state, _ = train_round(task.at(number), hooks, state)
        used[frequency] = set(compute_artefact(task.at(rounds), hooks, state, "groups")["group"])
        share = state.server["constants"]["selected"]
        share = share / share.sum()
        assert (share.min() > 0.05) if frequency else (share[0] == 1), share
    assert used[False] == {0}
    assert len(used[True]) > 1, "also by Eq. 5 alone"


def test_keys_and_prompts_by_coarse_label_select_the_labels(tiny):
    """Classes 0 and 2 have one coarse label, 1 and 3 the other, also on held-out clients."""
    task, hooks = tiny("sgpt", groups=2)
    coarse = torch.tensor([0, 1, 0, 1])
    centres = np.zeros((4, 16))
    centres[range(4), coarse] = 2
    centres[range(4), range(4, 8)] = 1
    task = with_features(task, centres, 0.1)
    state = initial_state(task, hooks)
    params = state.server["params"]
    rng = torch.Generator().manual_seed(0)
    for name, value in params.items():
        params[name] = torch.randn(value.shape, generator=rng)
    params["keys"] = torch.eye(16)[:2]
    images = compute_artefact(task.at(1), hooks, state, "groups")
    fine = [("alpha", "beta", "gamma", "long delta").index(name) for name in images["class"]]
    assert images["group"] == coarse[fine].tolist()
    assert sum(images["test"]) == sum(map(len, task.data.test)) < len(fine) == 120
    clusters = set(zip(images["group"], images["cluster"], strict=True))
    assert len(clusters) == 2, "k-means finds the same two, by whichever names"
    for ids in ([SERVER_MODEL], list(range(task.data.num_clients))):
        received, clients = prepare_clients(task, hooks, state, ids)
        rows = [task.data.test[0]] if ids == [SERVER_MODEL] else task.data.test
        batch = next(iterate_examples(task, rows))
        found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        given = coarse[batch.labels]
        expected = prompted.logits(task, received["params"], batch, given)
        torch.testing.assert_close(found, expected)
        wrong = prompted.logits(task, received["params"], batch, 1 - given)
        assert (found - wrong).abs().amax(-1).min() > 1e-4, "the prompt matters"


def test_the_majority_is_of_no_account_at_inference(drawn):
    """A majority would make an image's answer depend on the images beside it."""
    task, hooks, received, clients, batch = drawn(majority=True)
    batch.source = with_features(task, np.zeros((4, 16)), 1.0).data
    cosine = selection.cosines(task, received["params"]["keys"], batch)
    groups = cosine.argmax(-1)
    assert all(len(set(row)) > 1 for row in groups.tolist())
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    expected = prompted.logits(task, received["params"], batch, groups)
    assert torch.equal(found, expected)


def test_k_means_compares_directions_of_training_images(tiny):
    """Lengths say nothing, and test images, here opposite to all others, found no cluster."""
    task, hooks = tiny("sgpt", groups=2)
    train = np.concatenate(task.data.train)
    direction = np.full(120, 2)
    rng = np.random.default_rng(0)
    direction[train] = rng.permutation(len(train)) % 2
    features = np.array([[1, 0], [1, 0.5], [-1, 0]])[direction] @ np.eye(2, 16)
    features = torch.from_numpy(features * rng.choice([1, 100], (120, 1))).float()
    task = replace(task, data=replace(task.data, tokens=lambda place: features))
    images = compute_artefact(task, hooks, initial_state(task, hooks), "groups")
    assert images["test"][: len(train)] == [False] * len(train)
    clusters = np.array(images["cluster"][: len(train)])
    assert {tuple(set(clusters[direction[train] == k])) for k in (0, 1)} == {(0,), (1,)}
