"""Forged updates: what attackers send, alone and with other wrappers."""

import numpy as np
import pytest
import torch

from attacks import IDS, attacked_runs, heads, uploads
from fedloom.contract.tiny_run import upload
from fedloom.federated.round import initial_state
from fedloom.hooks import loader, manifest
from fedloom.toolbox import draw_attackers
from first_round import module
from refusals import refused


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which two of five clients attack."""
    return attacked_runs(tmp_path)


@pytest.mark.parametrize("scale", [-1.0, 5.0, 1.0, 0.0])
def test_attackers_send_a_multiple_of_their_change(run, scale):
    task, hooks = run("forged_update", scale=scale)
    start = initial_state(task, hooks).server["params"]["head"].double()
    honest = heads(task, loader.load_hooks(manifest.find_method("head_tuning")))
    for k, sent in heads(task, hooks).items():
        gamma = scale if k in draw_attackers(task, 0.4) else 1
        expected = start + gamma * (honest[k].double() - start)
        np.testing.assert_allclose(sent.numpy(), expected.numpy(), atol=1e-6)


def test_what_was_not_received_and_statistics_are_sent_as_they_are():
    received = {"head": torch.ones(2), "statistics": {"var": torch.ones(2)}}
    sent = {"head": torch.full((2,), 3.0), "statistics": {"var": torch.full((2,), 4.0)}}
    sent = sent | {"own": torch.ones(1)}
    draws = torch.Generator()
    found = module("forged_update").forge_params(sent, received, -2.0, 0.0, draws)
    assert found["head"].tolist() == [-3, -3] and found["own"].tolist() == [1]
    assert found["statistics"]["var"].tolist() == [4, 4]


def test_an_upload_that_is_packed_already_cannot_be_forged(run):
    task, hooks = run("top_k", "forged_update")
    with refused("forged_update: client ", "list forged_update before wrappers"):
        uploads(task, hooks)
    uploads(*run("forged_update", "top_k"))


def test_the_first_wrapper_acts_first_on_the_client_and_a_robust_mean_sees_both(run):
    """Attackers flip their labels, then scale their change; Krum on the server drops both."""
    task, hooks = run("label_flip", "forged_update", "krum")
    task.wrappers["forged_update"].scale = 100.0
    vars(task.wrappers["krum"]).update(byzantine=1, kept=3)
    inner = loader.load_hooks(
        manifest.find_method("head_tuning"), wrappers=[manifest.find_method("label_flip")]
    )
    start = 0.0
    flipped = heads(task, inner)
    sent = uploads(task, hooks)
    attackers = draw_attackers(task, 0.4)
    for u in sent:
        gamma = 100 if u.client in attackers else 1
        expected = start + gamma * flipped[u.client].double()
        np.testing.assert_allclose(u.payload["params"]["head"].numpy(), expected, rtol=1e-4)
    kept = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [u.client for u in kept] == [k for k in IDS if k not in attackers]


def test_a_clip_behind_an_attack_bounds_it(run):
    task, hooks = run("forged_update", "dp_gaussian", scale=1000.0)
    vars(task.wrappers["dp_gaussian"]).update(clip=0.01, sampling="study")
    for head in heads(task, hooks).values():  # heads start at zero
        assert head.norm() <= 0.01 * (1 + 1e-5)
    task, hooks = run("dp_gaussian", "forged_update")
    with refused("dp_gaussian: the wrapper forged_update", "or behind an attack"):
        initial_state(task, hooks)


def test_free_riders_hide_behind_noise_that_differs_by_client_and_round(run):
    task, hooks = run("forged_update", scale=0.0, noise=0.5, share=0.6)
    attackers = draw_attackers(task, 0.6)
    first = heads(task, hooks)
    noise = torch.stack([first[k] for k in attackers])  # heads start at zero
    assert noise.std().item() == pytest.approx(0.5, rel=0.15)
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 3
    later = upload(task, hooks, 2, initial_state(task, hooks), attackers)[1]
    assert not torch.equal(later[0].payload["params"]["head"], noise[0])
