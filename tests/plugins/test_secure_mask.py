"""Secure aggregation: the sum of masked uploads, and what each looks like."""

import numpy as np
import pytest
import torch
from scipy import stats

from changed_task import with_facts, with_training
from fedloom.common.errors import FedLoomError
from fedloom.hooks import loader, manifest
from first_round import module
from sent_updates import sent_by, wrapped_runs


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which wrappers lie around a method."""
    return wrapped_runs(tmp_path)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lost", [(), (2,), (1, 4)])
def test_the_server_gets_the_mean_of_those_whose_upload_arrives(run, weighted, lost):
    ids = [1, 2, 3, 4]
    task, hooks = run("secure_mask")
    task = with_facts(task, aggregation="weighted" if weighted else "plain")
    now, masked = sent_by(task, hooks, ids)
    _, plain = sent_by(task, loader.load_hooks(manifest.find_method("head_tuning")), ids)
    arrived = [u for u in masked if u.client not in lost]
    found = hooks.receive(task=now, server={}, updates=arrived)
    kept = [u for u in plain if u.client not in lost]
    weights = [len(task.data.train[u.client]) if weighted else 1 for u in kept]
    heads = [u.payload["params"]["head"].double().numpy() for u in kept]
    expected = np.average(heads, axis=0, weights=weights)
    assert [u.client for u in found] == [u.client for u in arrived]
    for u in found:
        head = u.payload["params"]["head"]
        assert head.dtype == torch.float32
        np.testing.assert_allclose(head.numpy(), expected, atol=2**-19)
    assert len(set(weights)) > 1 or not weighted


def test_the_sum_of_what_is_sent_is_that_of_the_rounded_parameters_modulo_r(run):
    task, hooks = run("secure_mask", fraction_bits=10)
    _, masked = sent_by(task, hooks, [1, 2, 3])
    _, plain = sent_by(task, loader.load_hooks(manifest.find_method("head_tuning")), [1, 2, 3])
    total = sum(u.payload["params"]["head"].numpy().astype(object) for u in masked)
    exact = sum(
        np.rint(u.payload["params"]["head"].double().numpy() * 2**10).astype(int) for u in plain
    )
    assert ((total - exact) % 2**32 == 0).all(), "to the integer, no rounding"


def test_what_a_client_sends_is_uniform_and_its_pairs_masks_differ(run):
    task, hooks = run("secure_mask")
    _, masked = sent_by(task, hooks, [1, 2, 3])
    for u in masked:
        wire = u.payload["params"]["head"]
        assert wire.dtype == torch.int32 and wire.numel() == 64
        share = (wire.double() + 2**31) / 2**32
        assert stats.kstest(share.flatten().numpy(), "uniform").pvalue > 1e-3
    first, second, third = (u.payload["params"]["head"].long() for u in masked)
    for sum_of_two in (first + second, first + third, second + third):
        reduced = (sum_of_two + 2**31) % 2**32 - 2**31
        assert (reduced.abs() > 2**24).double().mean() > 0.9, "the third one's masks are left"


def test_every_round_has_masks_of_its_own(run):
    task, _ = run("secure_mask")
    zeros = {"head": torch.zeros(64, dtype=torch.int64)}
    first, second = (
        module("secure_mask").add_masks(task.at(number), 1, [2, 3], zeros, 1)["head"]
        for number in (1, 2)
    )
    assert (first != second).all()


def test_a_parameter_beyond_the_modulus_is_refused(run):
    task, hooks = run("secure_mask", fraction_bits=30)
    task = with_training(task, lr=50.0)
    with pytest.raises(
        FedLoomError, match=r"secure_mask: client 1: a parameter is .* below 0\.667"
    ):
        sent_by(task, hooks, [1, 2, 3])
