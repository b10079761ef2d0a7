"""krum, trimmed_mean, secure_mask and dp_gaussian: what the server's step gets, by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from changed_task import with_facts, with_training
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.trees import leaves
from fedloom.config.settings import ResolvedSeeds
from fedloom.contract import checks, driver
from fedloom.contract.tiny import tiny_job, tiny_outputs, tiny_task
from fedloom.federated import training_job
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.hooks import loader, manifest
from fedloom.report import tables
from fedloom.toolbox import Update, gaussian_epsilon, secret_uniform
from first_round import module
from shown_runs import filled, shown, table_job


@pytest.fixture
def run(tmp_path):
    """run(wrappers, method, **options of the first): a task and its hooks."""

    def make(*names, method="head_tuning", **options):
        plugin, around = (
            manifest.find_method(method),
            tuple(manifest.find_method(name) for name in names),
        )
        task = tiny_task(plugin, tmp_path, around)
        task = replace(task, secret=bytes(32))  # so that no test fails by chance
        vars(task.wrappers[names[0]]).update(options)
        return task, loader.load_hooks(plugin, wrappers=around)

    return make


def update(client, examples=1, received=None, **params):
    received = {"params": received or {}}
    metrics = {"train_loss": 0.0}
    return Update({"params": params}, {}, examples, metrics, client=client, received=received)


def some(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(count, 4, 16, generator=generator)
    return [update(k, examples=k + 1, head=head) for k, head in enumerate(heads)]


# ---- krum -----------------------------------------------------------------------------------


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


# ---- trimmed_mean ---------------------------------------------------------------------------


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


# ---- secure_mask ----------------------------------------------------------------------------


def sent_by(task, hooks, ids):
    """What clients send in round 1, and the task in which they do."""
    state = initial_state(task, hooks)
    return checks.upload(task, hooks, 1, state, ids)


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


# ---- dp_gaussian ----------------------------------------------------------------------------


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
    """dp_gaussian around Head-Tuning with next to no noise: a task of 64 clients, and its hooks."""
    method, wrapper = manifest.find_method("head_tuning"), manifest.find_method("dp_gaussian")
    task = tiny_task(method, tmp_path_factory.mktemp("private"), (wrapper,))
    vars(task.wrappers["dp_gaussian"]).update(noise=1e-9, sampling="study")
    hooks = loader.load_hooks(method, wrappers=(wrapper,))
    return replace(task.at(1), selected=tuple(range(64))), hooks


@given(st.floats(1, 2000, width=32), st.floats(0.05, 1), st.integers(1, 3))
def test_no_client_adds_more_than_the_clip_however_float32_rounds(
    almost_noiseless, start, clip, entries
):
    """64 clients that changed alike: what rounding gave one of them too much, it gave them all."""
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
    """Over many rounds: mean of the noise 0, its deviation z S / (q N)."""
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
        taking = set(heads) if sampling == "study" else module("dp_gaussian").drawn(now)
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
    state, counts, sizes = initial_state(task, hooks), dict.fromkeys(task.data.participating, 0), []
    for number in range(1, 601):
        chosen = select_for_round(task.at(number), hooks, state)
        sizes.append(len(chosen))
        for k in chosen:
            counts[k] += 1
    n, q = 5, 3 / 5
    assert all(abs(count / 600 - q) < 4 * math.sqrt(q * (1 - q) / 600) for count in counts.values())
    assert np.var(sizes) == pytest.approx(n * q * (1 - q), rel=0.25), "a fixed number has none"


@RANDOMNESS
def test_those_who_train_are_those_who_count_also_where_a_study_fixes_the_sampling(run, randomness):
    task, hooks = run("dp_gaussian", randomness=randomness)
    task = replace(task, fixed_seeds=ResolvedSeeds(sampling=7))
    state, drawn = initial_state(task, hooks), module("dp_gaussian").drawn
    for number in range(1, 30):
        now = task.at(number)
        assert drawn(now) in ({*select_for_round(now, hooks, state)}, set())


def test_secret_draws_are_uniform_the_same_within_a_job_and_other_ones_in_another(run, tmp_path):
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
    """And the next rounds are drawn anew, so that each counts once in the budget."""
    method, wrapper = manifest.find_method("head_tuning"), manifest.find_method("dp_gaussian")
    job, outputs = tiny_job(method), tiny_outputs(tmp_path)
    saved = {}

    def train(kill_in):
        task = tiny_task(method, tmp_path, (wrapper,))  # a job makes a new one
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
    evaluation, runs = tmp_path / "evaluation.parquet", []
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
    tables.write(table_job(), runs, outputs)
    caption = outputs["md"].read_text().splitlines()[0]
    words = "secret noise" if secret else "noise that anyone with the seed can subtract"
    line = f"Differential privacy: A: epsilon 3.46 after 2 rounds, {words}; B: {words}."
    assert caption.endswith(line)


def test_a_client_that_trains_since_nobody_was_drawn_is_not_used(run):
    task, hooks = run("dp_gaussian", clip=0.2, noise=1e-6)
    task = replace(task, clients_per_round=1)
    drawn = module("dp_gaussian").drawn
    number = next(t for t in range(1, 100) if not drawn(task.at(t)))
    before = initial_state(task, hooks)
    state, row = train_round(task.at(number), hooks, before)
    assert row.clients == 1
    heads = [each.server["params"]["head"] for each in (before, state)]
    assert (heads[1] - heads[0]).abs().max() < 1e-5, "noise alone"
    other = next(t for t in range(1, 100) if drawn(task.at(t)))
    state, _ = train_round(task.at(other), hooks, before)
    assert (state.server["params"]["head"] - heads[0]).abs().max() > 1e-3


@pytest.mark.parametrize(("sampling", "q"), [("poisson", 3 / 5), ("study", 1.0)])
def test_epsilon_after_every_round_is_a_column_and_grows(run, sampling, q):
    """With `study`, selection is not a part of the mechanism: epsilon is that of all clients."""
    task, hooks = run("dp_gaussian", noise=2.0, delta=1e-4, sampling=sampling)
    state, spent = initial_state(task, hooks), []
    for number in (1, 2, 3):
        state, row = train_round(task.at(number), hooks, state)
        spent.append(row.metrics["epsilon"])
    expected = [gaussian_epsilon(2.0, q, t, 1e-4) for t in (1, 2, 3)]
    assert spent == expected and 0 < spent[0] < spent[1] < spent[2]
    assert initial_state(task, hooks).server["metrics"]["epsilon"] == 0.0


def hockey_stick(epsilon, q, z):
    """The exact delta of one round of the sampled Gaussian mechanism, by integration."""

    def delta(p0, p1):
        def rest(x):
            return max(0.0, p0(x) - math.exp(epsilon) * p1(x))

        return integrate.quad(rest, -12 * z, 1 + 12 * z, limit=500)[0]

    without, within = stats.norm(0, z).pdf, stats.norm(1, z).pdf

    def mixed(x):
        return (1 - q) * without(x) + q * within(x)

    return max(delta(mixed, without), delta(without, mixed))


@pytest.mark.parametrize(("q", "z"), [(1.0, 2.0), (0.2, 1.0), (0.6, 4.0)])
def test_epsilon_bounds_the_exact_one_of_a_round_and_is_not_far_from_it(q, z):
    epsilon = gaussian_epsilon(z, q, 1, 1e-3)
    assert hockey_stick(epsilon, q, z) <= 1e-3
    assert hockey_stick(0.5 * epsilon, q, z) > 1e-3, "half of it is too little"


def test_epsilon_of_many_rounds_without_sampling_is_that_of_one_with_less_noise():
    """T Gaussians of multiplier z are one of z / sqrt(T)."""
    one = gaussian_epsilon(1.0, 1.0, 1, 1e-5)
    assert gaussian_epsilon(4.0, 1.0, 16, 1e-5) == pytest.approx(one, rel=1e-9)
    assert gaussian_epsilon(1.0, 0.1, 10, 1e-5) < gaussian_epsilon(1.0, 1.0, 10, 1e-5)


def test_epsilon_is_not_negative_however_large_delta_is():
    """Any mechanism is (0, delta)-private for a delta near 1; the formula alone gives -3.3."""
    assert gaussian_epsilon(4.0, 0.1, 1, 0.9999) == 0.0
    spent = [gaussian_epsilon(4.0, 0.1, 1, delta) for delta in (1e-5, 0.1, 0.5, 0.9, 0.9999)]
    assert spent == sorted(spent, reverse=True) and spent[0] > 0


def test_running_statistics_of_batch_norm_are_not_clipped_together_with_weights(run):
    task, _ = run("dp_gaussian")
    given = {"head": torch.ones(4, 16), "statistics": {"mean": torch.ones(3)}}
    with pytest.raises(FedLoomError, match=r"dp_gaussian: .* batch norm's running statistics"):
        module("dp_gaussian").change_of(task, update(1, received=given, **given), {"params": given})


def test_clients_that_received_different_parameters_are_refused(run):
    task, hooks = run("dp_gaussian")
    head = torch.zeros(4, 16)
    updates = [update(k, head=head, received={"head": head + k}) for k in (1, 2)]
    with pytest.raises(FedLoomError, match="dp_gaussian: method head_tuning sends clients diff"):
        hooks.receive(task=replace(task.at(1), selected=(1, 2)), server={}, updates=updates)
    stranger = [update(1, other=head, received={"head": head})]
    with pytest.raises(FedLoomError, match="uploads 'other', which its clients had not received"):
        hooks.receive(task=replace(task.at(1), selected=(1,)), server={}, updates=stranger)
