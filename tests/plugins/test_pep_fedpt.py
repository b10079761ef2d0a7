"""PEP-FedPT against its equations, in float64 NumPy."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from changed_task import with_limits
from fedloom.common.errors import FedLoomError
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate import compute_artefact
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import cohort
from fedloom.toolbox.prototypes import warm_start
from first_round import first_cohort, module, upload

pep = module("pep_fedpt")
forward = module("pep_fedpt", "forward")


def reference_weights(cls, prototypes, priors, tau):
    """Return the weights of Eq. 13-15 and 23-24, class by class, in float64."""
    scores = np.zeros(len(prototypes))
    for c, mu in enumerate(prototypes):
        norms = np.linalg.norm(cls) * np.linalg.norm(mu)
        similarity = cls @ mu / norms if norms > 0 else 0.0
        scores[c] = np.exp(similarity / tau) * priors[c]
    return scores / scores.sum()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.3, 2.0]))
def test_mixing_weights_and_ccmp(seed, tau):
    rng = np.random.default_rng(seed)
    clients = 2
    batch = 3
    classes = 5
    width = 8
    cls = rng.normal(size=(clients, batch, width))
    prototypes = rng.normal(size=(clients, classes, width))
    prototypes[0, 1] = 0  # a class without prototype
    priors = rng.dirichlet(np.ones(classes), clients)
    priors[:, 2] = 0  # a class that nobody holds
    priors /= priors.sum(1, keepdims=True)
    prompts = rng.normal(size=(clients, classes, width))
    arguments = (torch.tensor(x, dtype=torch.float32) for x in (cls, prototypes, priors))
    weights = forward.mixing_weights(*arguments, tau)
    mixed = weights @ torch.tensor(prompts, dtype=torch.float32)  # Eq. 25
    for k in range(clients):
        for b in range(batch):
            expected = reference_weights(cls[k, b], prototypes[k], priors[k], tau)
            np.testing.assert_allclose(weights[k, b].numpy(), expected, atol=2e-5)
            np.testing.assert_allclose(mixed[k, b].numpy(), prompts[k].T @ expected, atol=2e-4)
    assert (weights[..., 2] == 0).all(), "a prior of zero gives a weight of exactly zero"


def _upload(*prototypes):
    value = torch.tensor(prototypes, dtype=torch.float32)[None]  # [S=1, C, d]
    params = {"head": torch.zeros(2, 2), "shared_prompts": torch.zeros(1, 2)}
    params["class_prompts"] = torch.zeros(2, 2)
    return upload(params, prototypes=value)


def test_prototypes_after_two_clients_and_two_periods(tiny):
    """Client b lacks class 1, and in the second window all do; R = 2 and rho = 0.25."""
    task, hooks = tiny("pep_fedpt", period=2, momentum=0.25)
    start = torch.tensor([[[4.0, 0.0], [0.0, 8.0]]])  # mu_0 [S, C, d]
    server = {"params": {}, "constants": {"prototypes": start}, "window": pep.empty_window(start)}
    rounds = {
        1: [_upload([1.0, 1.0], [2.0, 2.0]), _upload([3.0, 1.0], [0.0, 0.0])],
        2: [_upload([2.0, 0.0], [4.0, 0.0]), _upload([2.0, 2.0], [0.0, 0.0])],
        3: [_upload([0.0, 4.0], [0.0, 0.0]), _upload([0.0, 2.0], [0.0, 0.0])],
        4: [_upload([0.0, 2.0], [0.0, 0.0]), _upload([0.0, 4.0], [0.0, 0.0])],
    }
    seen = {}
    for number, updates in rounds.items():
        server = hooks.aggregate(task=task.at(number), server=server, updates=updates)
        seen[number] = server["constants"]["prototypes"][0].tolist()
    assert seen[1] == start[0].tolist(), "in the middle of a window nothing moves"
    # class 0: mean of (1,1) (3,1) (2,0) (2,2) = (2,1); class 1: D_c = 2, mean (3,1)
    assert seen[2] == [[0.25 * 4 + 0.75 * 2, 0.75 * 1], [0.75 * 3, 0.25 * 8 + 0.75 * 1]]
    # class 0: mean (0,3); class 1: D_c = 0, so rho = 1
    assert seen[4] == [[0.25 * 2.5, 0.25 * 0.75 + 0.75 * 3], seen[2][1]]


def test_uploaded_prototypes_are_the_class_means_under_the_global_state(tiny):
    """Eq. 10 is computed from class tokens that are taken block by block and image by image."""
    task, hooks = tiny("pep_fedpt", blocks=[2, 3])
    client = task.data.participating[0]
    received, clients, _ = first_cohort(task, hooks, [client])
    update = hooks.client_update(task=task.at(1), received=received, clients=clients)[0]
    rows = task.data.train[client]
    totals = {}
    for row in rows:
        batch = task.data.batch([np.array([row])])
        seen = forward.forward(task, received["params"], received, clients, batch, 3).class_tokens
        totals.setdefault(int(batch.labels[0, 0]), []).append(torch.stack(seen[1:], -2)[0, 0])
    for c in range(task.num_classes):
        actual = update.payload["prototypes"][:, c]  # [S, d]
        expected = torch.stack(totals[c]).mean(0) if c in totals else torch.zeros_like(actual)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_without_class_prompts_it_is_fedvpt(tiny):
    task, hooks = tiny("pep_fedpt", ccmp=False)
    server = hooks.init_server(task=task)
    assert server.keys() == {"params"}
    assert server["params"].keys() == {"head", "shared_prompts"}
    state, row = train_round(task.at(1), hooks, State(server))
    twin_task, twin_hooks = tiny("fedvpt")
    twin, twin_row = train_round(twin_task.at(1), twin_hooks, State(server))
    assert row.train_loss == twin_row.train_loss
    torch.testing.assert_close(state.server, twin.server, atol=0, rtol=0)


def test_the_later_mix_replaces_the_earlier_one(tiny):
    task, hooks = tiny("pep_fedpt", blocks=[3, 5], shared_prompts=2)
    received, clients, batch = first_cohort(task, hooks, task.data.participating[:1])
    plain = task.backbone.embed(batch.images).shape[-2]
    for until, extra in ((2, 2), (3, 3), (5, 3), (13, 3)):
        passed = forward.forward(task, received["params"], received, clients, batch, until)
        assert passed.tokens.shape[-2] == (1 if until == 13 else plain + extra), "the class token"
        assert len(passed.class_tokens) == until
        assert len(passed.weights) == (until >= 3) + (until >= 5)


@pytest.mark.parametrize("at_once", [256, 8])
def test_class_means_of_ragged_clients(tiny, at_once):
    """Images come in one batch or in several; the spread is the largest over all batches."""
    task = with_limits(tiny("head_tuning")[0], images=at_once, features=at_once)
    ids = task.data.participating
    clients = cohort(task, ids, [{} for _ in ids])
    actual, statistics = pep.class_means(task, clients, lambda c, batch: batch.features[:, :, None])
    for k, client in enumerate(ids):
        rows = task.data.train[client]
        for c in range(task.num_classes):
            mine = task.data.tokens(None)[rows[task.data.store.labels[rows] == c]]
            expected = mine.mean(0) if len(mine) else torch.zeros(task.backbone.width)
            torch.testing.assert_close(actual[k, 0, c], expected, atol=1e-5, rtol=1e-5)
            farthest = max([float((x - expected).abs().sum()) for x in mine], default=0.0)
            assert float(statistics["spread"][k, 0, c]) == pytest.approx(farthest, abs=1e-4)
            assert statistics["count"][k, c] == len(mine)


def test_the_warm_start_counts_a_class_that_a_client_lacks_as_zeros():
    """Eq. 18-19 divide the sum over clients by |S_0|, for every class alike."""
    rng = np.random.default_rng(0)
    # [N, M, d]
    tokens = rng.normal(size=(9, 2, 3))
    labels = np.array([0, 0, 1, 1, 1, 0, 2, 2, 2])
    clients = [np.array([0, 1, 2, 3]), np.array([4, 5, 8])]
    inputs = torch.tensor(tokens, dtype=torch.float32)
    actual = warm_start(
        inputs, torch.from_numpy(labels), [torch.from_numpy(rows) for rows in clients], 4
    )
    mean = np.zeros((2, 4, 3))
    spread = np.zeros((2, 4))
    count = np.zeros(4)
    for rows in clients:
        for c in set(labels[rows]):
            own = tokens[rows[labels[rows] == c]]  # [n, M, d]
            mean[:, c] += own.mean(0) / len(clients)
            farthest = np.abs(own - own.mean(0)).sum(-1).max(0)  # [M]
            spread[:, c] = np.maximum(spread[:, c], farthest)
            count[c] += len(own)
    np.testing.assert_allclose(actual["mean"].numpy(), mean, atol=1e-6)
    np.testing.assert_allclose(actual["spread"].numpy(), spread, atol=1e-5)
    assert actual["count"].tolist() == count.tolist() == [3, 3, 1, 0]


def test_a_block_beyond_the_backbone_is_refused(tiny):
    task, hooks = tiny("pep_fedpt", blocks=[5, 13])
    with pytest.raises(FedLoomError, match=r"option blocks must name .* 12, .* got \[5, 13\]"):
        hooks.init_server(task=task)


def test_class_prompts_and_the_tokens_of_all_test_images_are_artefacts(tiny):
    task, hooks = tiny("pep_fedpt", blocks=[2, 3])
    state = initial_state(task, hooks)
    prompts = compute_artefact(task, hooks, state, "class_prompts")
    assert prompts["vector"] == state.server["params"]["class_prompts"].tolist()
    tokens = pd.DataFrame(compute_artefact(task, hooks, state, "class_tokens"))
    images = sum(map(len, task.data.test))
    assert tokens.groupby("block").size().to_dict() == dict.fromkeys(range(1, 14), images)
    assert set(tokens["domain"]) == {"noise"}
    first = np.stack(tokens[tokens["block"] == 1]["vector"])
    assert np.ptp(first, axis=0).max() < 1e-6, "before block 1 all class tokens are alike"


def test_soft_weights_are_means_over_all_test_images_of_a_class(tiny):
    """The means are computed image by image; a class without test images has no row."""
    task, hooks = tiny("pep_fedpt", blocks=[3, 2])
    labels = task.data.store.labels
    task.data.test[:] = [rows[labels[rows] != 1] for rows in task.data.test]
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    given = {(j, label): [] for j in (2, 3) for label in (0, 2, 3)}
    for client, rows in enumerate(task.data.test):
        received, clients = prepare_clients(task.at(1), hooks, state, [client])
        batch = task.data.batch([rows])
        passed = forward.forward(task, received["params"], received, clients, batch, 3)
        for j, weights in zip((2, 3), passed.weights, strict=True):
            for label, mixed in zip(labels[rows], weights[0], strict=True):
                given[j, label].append(mixed.double().numpy())
    found = compute_artefact(task.at(1), hooks, state, "soft_weights")
    assert found["block"] == [2] * 12 + [3] * 12
    assert found["label"] == [0, 0, 0, 0, 2, 2, 2, 2, 3, 3, 3, 3] * 2
    assert found["class"] == [0, 1, 2, 3] * 6
    expected = np.concatenate([np.mean(given[key], 0) for key in sorted(given)])
    np.testing.assert_allclose(found["weight"], expected, atol=1e-5)
    assert np.std(expected) > 0.05


def test_shown_class_tokens_are_of_a_few_images_drawn_once(tiny, monkeypatch):
    """Some batches hold none of the images shown; block 13 is the classifier's input."""
    task, hooks = tiny("pep_fedpt", blocks=[2, 3])
    task = with_limits(task, images=12)
    task.data.test[:] = [np.random.default_rng(0).permutation(rows) for rows in task.data.test]
    artefacts = module("pep_fedpt", "artefacts")
    monkeypatch.setattr(artefacts, "MAX_IMAGES", 3)
    state = initial_state(task, hooks)
    found = pd.DataFrame(compute_artefact(task.at(4), hooks, state, "class_tokens"))
    again = pd.DataFrame(compute_artefact(task.at(4), hooks, state, "class_tokens"))
    assert found.equals(again)
    assert found.groupby("block").size().to_dict() == dict.fromkeys(range(1, 14), 3)
    known = []
    for client, rows in enumerate(task.data.test):
        received, clients = prepare_clients(task.at(4), hooks, state, [client])
        batch = task.data.batch([rows])
        passed = forward.forward(task, received["params"], received, clients, batch, 13)
        tokens = torch.stack(passed.class_tokens)[:, 0]  # [13, B, d]
        known += [(task.data.store.labels[row], tokens[:, i]) for i, row in enumerate(rows)]
    for j, label, vector in zip(found["block"], found["label"], found["vector"], strict=True):
        alike = [tokens[j - 1] for c, tokens in known if c == label]
        assert min((token - torch.tensor(vector)).abs().max() for token in alike) < 1e-4
