"""Krum and the trimmed mean, against their definitions."""

import numpy as np
import pytest
import torch

from fedloom.common.errors import FedLoomError
from fedloom.contract import driver
from fedloom.hooks import manifest
from first_round import module
from sent_updates import update, wrapped_runs


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which wrappers lie around a method."""
    return wrapped_runs(tmp_path)


def some(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(count, 4, 16, generator=generator)
    return [update(k, examples=k + 1, head=head) for k, head in enumerate(heads)]


@pytest.mark.parametrize("byzantine", [0, 1, 2])
def test_scores_are_sums_of_squared_distances_to_the_nearest_others(byzantine):
    vectors = np.random.default_rng(0).normal(size=(7, 5))
    expected = []
    for i, v in enumerate(vectors):
        far = sorted(float(((v - w) ** 2).sum()) for j, w in enumerate(vectors) if j != i)
        expected.append(sum(far[: 7 - byzantine - 2]))
    found = module("krum").scores(torch.from_numpy(vectors), byzantine)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("kept", [1, 3])
def test_krum_leaves_attackers_out(run, kept):
    task, hooks = run("krum", byzantine=2, kept=kept)
    centre = torch.zeros(4, 16)
    generator = torch.Generator().manual_seed(1)
    honest = [centre + 0.1 * torch.randn(4, 16, generator=generator) for _ in range(5)]
    updates = [update(k, head=head) for k, head in enumerate([*honest, centre + 50, centre - 50])]
    found = hooks.receive(task=task.at(1), server={}, updates=updates)
    vectors = np.stack([u.payload["params"]["head"].double().numpy().ravel() for u in updates])
    far = ((vectors[:, None] - vectors) ** 2).sum(-1)
    scores = [np.sort(row)[1 : 1 + 7 - 2 - 2].sum() for row in far]
    assert [u.client for u in found] == sorted(np.argsort(scores)[:kept].tolist())
    assert all(any(u is sent for sent in updates[:5]) for u in found), "as they were sent"


def test_krum_says_that_a_round_has_too_few_updates(run):
    task, hooks = run("krum", byzantine=1)
    with pytest.raises(FedLoomError, match="krum: round 2 has 4 updates, but byzantine: 1 needs 5"):
        hooks.receive(task=task.at(2), server={}, updates=some(4))
    one = some(1)
    assert hooks.receive(task=task.at(2), server={}, updates=one) == one


@pytest.mark.parametrize(("trim", "cut"), [(0.0, 0), (0.1, 1), (0.2, 1), (0.25, 2), (0.5, 2)])
def test_trimmed_mean_leaves_the_extreme_values_of_every_coordinate_out(run, trim, cut):
    task, hooks = run("trimmed_mean", trim=trim)
    updates = some(5)
    found = hooks.receive(task=task, server={}, updates=updates)
    heads = np.stack([u.payload["params"]["head"].double().numpy() for u in updates])
    expected = np.sort(heads, axis=0)[cut : 5 - cut].mean(0)
    assert len(found) == 5
    for u in found:
        np.testing.assert_allclose(u.payload["params"]["head"].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["trimmed_mean", "dp_gaussian"])
def test_methods_whose_server_uses_each_update_are_refused(name):
    line = driver.refusal(manifest.find_method(name), manifest.find_method("pfedmoap"))
    assert line.startswith(f"{name}: method pfedmoap declares no aggregation")
