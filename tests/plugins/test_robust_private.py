"""Differential privacy by Gaussian noise: clips, noise, sampling, and what a table says of them."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.trees import leaves
from fedloom.config.settings import ResolvedSeeds
from fedloom.contract.tiny import tiny_job, tiny_outputs, tiny_task
from fedloom.federated import training_job
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.hooks import loader, manifest
from fedloom.report import tables
from fedloom.toolbox import gaussian_epsilon, secret_uniform
from first_round import module
from sent_updates import sent_by, update, wrapped_runs
from shown_runs import filled, shown, table_job


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which wrappers lie around a method."""
    return wrapped_runs(tmp_path)


def test_changes_are_clipped_to_their_norm_over_all_parameters(run):
    task, hooks = run("dp_gaussian", method="fedvpt", clip=0.05, sampling="study")
    now, clipped = sent_by(task, hooks, [1, 2, 3])
    plain_hooks = loader.load_hooks(manifest.find_method("fedvpt"))
    _, plain = sent_by(task, plain_hooks, [1, 2, 3])
    start = dict(leaves(initial_state(task, hooks).server["params"]))
    for u, other in zip(clipped, plain, strict=True):
        found, exact = (
            np.concatenate(
                [
                    (value - start[path]).double().numpy().ravel()
                    for path, value in leaves(each.payload["params"])
                ]
            )
            for each in (u, other)
        )
        norm = np.linalg.norm(exact)
        assert norm > 0.05, "else nothing is clipped"
        np.testing.assert_allclose(found, exact * 0.05 / norm, atol=1e-6)
        assert u.metrics["update_norm"] == pytest.approx(norm, rel=1e-5)
        assert u.metrics["clipped"] == 1.0
    assert now.selected == (1, 2, 3)


@pytest.fixture(scope="module")
def almost_noiseless(tmp_path_factory):
    """Return a task of 64 clients and hooks of dp_gaussian, which adds hardly any noise."""
    method = manifest.find_method("head_tuning")
    wrapper = manifest.find_method("dp_gaussian")
    task = tiny_task(method, tmp_path_factory.mktemp("private"), (wrapper,))
    vars(task.wrappers["dp_gaussian"]).update(noise=1e-9, sampling="study")
    hooks = loader.load_hooks(method, wrappers=(wrapper,))
    return replace(task.at(1), selected=tuple(range(64))), hooks


@given(st.floats(1, 2000, width=32), st.floats(0.05, 1), st.integers(1, 3))
def test_no_client_adds_more_than_the_clip_however_float32_rounds(
    almost_noiseless, start, clip, entries
):
    """All 64 clients change alike, so what rounding adds to one of them it adds to all."""
    task, hooks = almost_noiseless
    vars(task.wrappers["dp_gaussian"]).update(clip=clip)
    before = torch.full((entries,), start)
    sent = before + clip / entries**0.5
    updates = [update(k, head=sent, received={"head": before}) for k in task.selected]
    head = hooks.receive(task=task, server={}, updates=updates)[0].payload["params"]["head"]
    total = 3 * (head.double() - before.double()).norm()  # three clients are expected
    rounding = 3 * entries**0.5 * head.max().item() * 2**-24  # of the server's new head
    assert total <= 64 * clip + rounding + 1e-6


RANDOMNESS = pytest.mark.parametrize("randomness", ["seeded", "secret"])


@RANDOMNESS
@pytest.mark.parametrize("sampling", ["study", "poisson"])
def test_noise_of_z_times_the_clip_is_added_to_the_sum(run, sampling, randomness):
    """The noise of many rounds has the mean 0 and the deviation z S / (q N)."""
    task, hooks = run("dp_gaussian", clip=0.2, noise=1.5, sampling=sampling, randomness=randomness)
    start = torch.zeros(4, 16)
    heads = {k: torch.full((4, 16), 0.01 * k) for k in (1, 2, 3)}
    updates = [update(k, head=head, received={"head": start}) for k, head in heads.items()]
    seen = []
    for number in range(1, 200):
        now = replace(task.at(number), selected=(1, 2, 3))
        (head, *others) = (
            u.payload["params"]["head"].double().numpy()
            for u in hooks.receive(task=now, server={}, updates=updates)
        )
        assert all(np.array_equal(head, other) for other in others)
        taking = set(heads) if sampling == "study" else module("dp_gaussian").draw_clients(now)
        total = sum(heads[k].double().numpy() for k in heads if k in taking)
        seen.append(head - total / 3)  # three clients are expected, any number took part
    noise = np.stack(seen).ravel()
    scale = 1.5 * 0.2 / 3
    assert len(np.unique(noise)) > 0.9 * len(noise), "drawn anew in every round"
    assert abs(noise.mean()) < 4 * scale / math.sqrt(len(noise))
    assert noise.std() == pytest.approx(scale, rel=0.03)
    assert stats.kstest(noise / scale, "norm").pvalue > 1e-3


@pytest.mark.parametrize("arrived", [1, 2, 4, 5])
def test_the_sum_is_divided_by_the_clients_that_are_expected_however_many_come(run, arrived):
    """Epsilon holds for a denominator that no client changes by taking part."""
    task, hooks = run("dp_gaussian", clip=0.2, noise=1e-9, sampling="study")
    assert task.clients_per_round == 3
    ids = tuple(range(1, arrived + 1))
    changes = {k: torch.full((4, 16), 0.001 * k) for k in ids}
    updates = [
        update(k, head=change, received={"head": torch.zeros(4, 16)})
        for k, change in changes.items()
    ]
    now = replace(task.at(1), selected=ids)
    sent = hooks.receive(task=now, server={}, updates=updates)
    expected = torch.full((4, 16), 0.001 * sum(ids) / 3)
    torch.testing.assert_close(sent[0].payload["params"]["head"], expected, atol=1e-8, rtol=0)


@RANDOMNESS
def test_clients_take_part_independently_with_probability_q(run, randomness):
    task, hooks = run("dp_gaussian", randomness=randomness)
    state = initial_state(task, hooks)
    counts = dict.fromkeys(task.data.participating, 0)
    sizes = []
    for number in range(1, 601):
        chosen = select_for_round(task.at(number), hooks, state)
        sizes.append(len(chosen))
        for k in chosen:
            counts[k] += 1
    n = 5
    q = 3 / 5
    assert all(abs(count / 600 - q) < 4 * math.sqrt(q * (1 - q) / 600) for count in counts.values())
    assert np.var(sizes) == pytest.approx(n * q * (1 - q), rel=0.25), "a fixed number has none"


@RANDOMNESS
def test_drawn_clients_are_the_selected_ones_if_a_study_fixes_the_sampling(run, randomness):
    task, hooks = run("dp_gaussian", randomness=randomness)
    task = replace(task, fixed_seeds=ResolvedSeeds(sampling=7))
    state = initial_state(task, hooks)
    drawn = module("dp_gaussian").draw_clients
    for number in range(1, 30):
        now = task.at(number)
        assert drawn(now) in ({*select_for_round(now, hooks, state)}, set())


def test_secret_draws_are_uniform_and_fixed_within_a_job_alone(run, tmp_path):
    task, _ = run("dp_gaussian")
    many = [3, 50_000]  # more than one digest gives
    found = secret_uniform(task.at(1), "x", many)
    assert found.shape == (3, 50_000) and found.dtype == torch.float64
    assert found.min() > 0 and found.max() < 1 and len(found.unique()) == found.numel()
    assert stats.kstest(found.flatten().numpy(), "uniform").pvalue > 1e-3
    assert torch.equal(found, secret_uniform(replace(task, seed=5).at(1), "x", many))
    jobs = [tiny_task(manifest.find_method("head_tuning"), tmp_path) for _ in range(2)]
    others = [
        secret_uniform(task.at(2), "x", many),
        secret_uniform(task.at(1), "y", many),
        *(secret_uniform(job.at(1), "x", many) for job in jobs),
    ]
    assert len(torch.stack([found, *others]).unique()) == 5 * found.numel()
    assert "secret" not in repr(task)


def test_rounds_of_secret_noise_that_are_saved_stay_when_a_killed_job_goes_on(tmp_path):
    """Rounds after the saved ones are drawn anew, so that each counts once in the budget."""
    method = manifest.find_method("head_tuning")
    wrapper = manifest.find_method("dp_gaussian")
    job = tiny_job(method)
    outputs = tiny_outputs(tmp_path)
    saved = {}

    def train(kill_in):
        task = tiny_task(method, tmp_path, (wrapper,))  # each job draws a new secret
        task.wrappers["dp_gaussian"].randomness = "secret"
        hooks = loader.load_hooks(method, wrappers=(wrapper,))

        def aggregate(task, **known):
            server = hooks.aggregate(task=task, **known)
            if task.round == kill_in:
                raise KeyboardInterrupt
            saved.setdefault(task.round, []).append(server["params"]["head"])
            return server

        class Killed:
            __getattr__ = staticmethod(lambda name: getattr(hooks, name))

        killed = Killed()
        killed.aggregate = aggregate
        training_job.train_rounds(task, killed, job, None, outputs, "same")

    with pytest.raises(KeyboardInterrupt):
        train(kill_in=3)
    train(kill_in=None)
    assert {number: len(heads) for number, heads in saved.items()} == {1: 1, 2: 1, 3: 1, 4: 1}
    rounds = read_table(outputs.rounds).to_pydict()
    assert rounds["round"] == [1, 2, 3, 4] and rounds["secret_noise"] == [1.0] * 4
    assert rounds["epsilon"] == [gaussian_epsilon(1.0, 3 / 5, t, 1e-5) for t in (1, 2, 3, 4)]
    whole = saved[4]
    outputs.checkpoint.unlink()
    train(kill_in=None)
    assert not torch.equal(whole[0], saved[4][1]), "the run's bytes are its own"


@pytest.mark.parametrize("secret", [0.0, 1.0])
def test_a_table_says_what_was_spent_and_who_can_subtract_the_noise(tmp_path, secret):
    evaluation = tmp_path / "evaluation.parquet"
    runs = []
    row = {"client_id": 0, "domain": "x", "participating": True, "personalized": False}
    rows = [row | {"round": 1, "num_test": 4, "num_correct": 3}]
    filled(rows, "evaluation").to_parquet(evaluation)
    noisy = {"round": [1, 2], "epsilon": [2.0, 3.456], "secret_noise": secret}
    uncounted = {"round": [1], "secret_noise": secret}
    for title, own in {"A": noisy, "B": uncounted, "C": {"round": [1]}}.items():
        rounds = tmp_path / f"{title}.parquet"
        pd.DataFrame(own).assign(train_loss=1.0, guessing_loss=2.0).to_parquet(rounds)
        runs.append(shown(method=title, title=title, evaluation=evaluation, rounds=rounds))
    outputs = {kind: tmp_path / f"main.{kind}" for kind in ("md", "csv", "tex", "html", "parquet")}
    tables.write_table(table_job(), runs, outputs)
    details = outputs["md"].read_text().splitlines()[-1]
    words = "secret noise" if secret else "noise that anyone with the seed can subtract"
    line = f"Differential privacy: A: epsilon 3.46 after 2 rounds, {words}; B: {words}."
    assert details.endswith(line)


def test_a_client_that_trains_since_nobody_was_drawn_is_not_used(run):
    task, hooks = run("dp_gaussian", clip=0.2, noise=1e-6)
    task = replace(task, clients_per_round=1)
    drawn = module("dp_gaussian").draw_clients
    number = next(t for t in range(1, 100) if not drawn(task.at(t)))
    before = initial_state(task, hooks)
    state, row = train_round(task.at(number), hooks, before)
    assert row.clients == 1
    heads = [each.server["params"]["head"] for each in (before, state)]
    assert (heads[1] - heads[0]).abs().max() < 1e-5, "noise alone"
    other = next(t for t in range(1, 100) if drawn(task.at(t)))
    state, _ = train_round(task.at(other), hooks, before)
    assert (state.server["params"]["head"] - heads[0]).abs().max() > 1e-3


def test_running_statistics_of_batch_norm_are_not_clipped_together_with_weights(run):
    task, _ = run("dp_gaussian")
    given = {"head": torch.ones(4, 16), "statistics": {"mean": torch.ones(3)}}
    with pytest.raises(FedLoomError, match=r"dp_gaussian: .* batch norm's running statistics"):
        module("dp_gaussian").parameter_change(
            task, update(1, received=given, **given), {"params": given}
        )


def test_clients_that_received_different_parameters_are_refused(run):
    task, hooks = run("dp_gaussian")
    head = torch.zeros(4, 16)
    updates = [update(k, head=head, received={"head": head + k}) for k in (1, 2)]
    with pytest.raises(FedLoomError, match="dp_gaussian: method head_tuning sends clients diff"):
        hooks.receive(task=replace(task.at(1), selected=(1, 2)), server={}, updates=updates)
    stranger = [update(1, other=head, received={"head": head})]
    with pytest.raises(FedLoomError, match="uploads 'other', which its clients had not received"):
        hooks.receive(task=replace(task.at(1), selected=(1,)), server={}, updates=stranger)
