"""PFPT's likelihood and its two half-steps against Eq. 8-10, written out term by term."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm

from fedloom.common.trees import tensor_map
from pfpt_cases import matching, moved_prompts, small_nets


def _problem(seed, clients=3, each=2, count=5, width=4):
    """Return prompts w [m, n_t, d], phi and alpha [n, d], g [n] and an assignment z [m, n_t]."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(clients, each, width))
    phi = rng.normal(size=(count, width))
    g = rng.normal(size=count)
    alpha = rng.uniform(0.3, 2, size=(count, width))
    z = np.stack([rng.permutation(count)[:each] for _ in range(clients)])
    return w, phi, alpha, g, z


def _term_by_term(w, phi, alpha, g, z):
    """Return log P(w, z) by Eq. 8-10, in float64, summed over every prompt and every coin."""
    result = 0.0
    for t, prompts in enumerate(w):
        for k, prompt in enumerate(prompts):
            i = z[t, k]
            deviation = (prompt - phi[i]) / alpha[i] ** 0.5
            result -= (deviation**2 / 2 + np.log(alpha[i] ** 0.5 * (2 * np.pi) ** 0.5)).sum()
        for i in range(len(phi)):
            c = int((z[t] == i).sum())
            result += np.log(expit(g[i]) ** c * (1 - expit(g[i])) ** (1 - c))
    return result


def _as_coded(w, phi, alpha, g, z):
    tensors = [torch.from_numpy(x) for x in (phi, alpha, g)]
    members = matching.gather_members(
        torch.from_numpy(w).flatten(0, 1), torch.from_numpy(z).ravel(), len(phi)
    )
    return float(matching.likelihood(members, *tensors, len(w)))


def _in_use(w, phi, alpha, g, z):
    """Return L1 + L2 over the phi that somebody is assigned to."""
    used, places = np.unique(z, return_inverse=True)
    return _term_by_term(w, phi[used], alpha[used], g[used], places.reshape(z.shape))


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_l1_and_l2_are_the_gaussian_and_the_bernoulli_likelihood(seed):
    problem = _problem(seed)
    assert _as_coded(*problem) == pytest.approx(_term_by_term(*problem), abs=1e-9)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_densities_as_matrix_products(seed):
    w, phi, alpha, *_ = _problem(seed)
    w = w.reshape(-1, w.shape[-1])
    found = matching.log_density(*(torch.from_numpy(x) for x in (w, phi, alpha)))
    expected = norm.logpdf(w[:, None], phi, alpha**0.5).sum(-1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.booleans())
def test_assignment_equals_brute_force(seed, free):
    """Brute force goes client by client and keeps the other clients' assignments meanwhile."""
    w, phi, alpha, g, z = _problem(seed)
    g *= 3
    value = _in_use if free else _term_by_term
    width = w.shape[-1]
    flat = torch.from_numpy(w.reshape(-1, width))
    costs = matching.log_density(flat, *(torch.from_numpy(x) for x in (phi, alpha))).numpy() + g
    opening = len(w) * np.log(expit(-g)) * free
    found = matching.assign(costs.reshape(*z.shape, -1), opening, z)
    now = z.copy()
    for t in range(len(w)):
        trials = []
        for places in itertools.permutations(range(len(phi)), z.shape[1]):
            trial = now.copy()
            trial[t] = places
            trials.append((value(w, phi, alpha, g, trial), trial))
        now = max(trials, key=lambda pair: pair[0])[1]
    assert (found == now).all()
    assert value(w, phi, alpha, g, found) >= value(w, phi, alpha, g, z) - 1e-9


@pytest.mark.parametrize("unused_prompts", ["free", "penalised"])
@pytest.mark.parametrize("server_lr", [1e-3, 1.0])
def test_no_half_step_lowers_the_likelihood(tiny, monkeypatch, unused_prompts, server_lr):
    """A learning rate of 1 makes the ascent fall; it must then return its best point."""
    options, nets = small_nets(tiny, 6, unused_prompts=unused_prompts, server_lr=server_lr)
    steps = []
    ascend = matching.ascend
    assign = matching.assign

    def watched_ascent(options, members, phi, nets, clients):
        def value(phi, nets):
            return matching.likelihood(
                members, phi, *matching.parameters(options, nets, phi), clients
            ).item()

        moved, learned = ascend(options, members, phi, nets, clients)
        steps.append((value(phi, nets), value(moved, learned)))
        return moved, learned

    def watched_assignment(costs, opening, z):
        def value(z):
            rows = np.arange(z.shape[1])
            return sum(c[rows, p].sum() for c, p in zip(costs, z, strict=True)) + (
                opening[np.unique(z)].sum()
            )

        found = assign(costs, opening, z)
        steps.append((value(z), value(found)))
        return found

    monkeypatch.setattr(matching, "ascend", watched_ascent)
    monkeypatch.setattr(matching, "assign", watched_assignment)
    for seed in range(4):
        matching.summarise(options, *moved_prompts(seed), nets)
    assert all(after >= before - 1e-3 for before, after in steps)
    assert sum(after > before + 1e-3 for before, after in steps) > len(steps) / 3
    if unused_prompts == "free":  # both half-steps have the same likelihood
        ascents = steps[::2]
        assignments = steps[1::2]
        for (_, end), (begin, _) in zip(ascents, assignments, strict=True):
            assert end == pytest.approx(begin, abs=2e-2)


def test_two_candidates_at_the_average_distance_differ_by_separation_nats(tiny):
    """Large negative outputs of the network reach alpha's lower bound, where this holds."""
    options, nets = small_nets(tiny, 6, separation=7.0)
    nets["alpha"]["outer"] = tensor_map(torch.zeros_like, nets["alpha"]["outer"])
    nets["alpha"]["outer"]["bias"] -= 100
    candidates = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    candidates = (candidates - candidates.mean(0)) / candidates.var(0).mean().sqrt()
    alpha, _ = matching.parameters(options, nets, candidates)
    density = matching.log_density(candidates, candidates, alpha)
    nats = density.diagonal()[:, None] - density  # the cost of another candidate
    pairs = nats[~torch.eye(40, dtype=torch.bool)]
    assert pairs.mean().item() == pytest.approx(7, rel=1e-4)
    nets["alpha"]["outer"]["bias"] += 200
    assert (matching.parameters(options, nets, candidates)[0] > alpha).all()


def test_the_pool_moves_and_grows_with_the_prompts(tiny):
    """Candidates are standardised, so the place and the scale of the prompts are no matter."""
    options, nets = small_nets(tiny, 6)
    phi, uploaded = moved_prompts(0)
    pool, after = matching.summarise(options, phi, uploaded, nets)
    other, same = matching.summarise(options, 0.01 * phi + 3, 0.01 * uploaded + 3, nets)
    torch.testing.assert_close((other - 3) / 0.01, pool, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(after, same, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("iterations", [1, 2, 10])
def test_turns_end_when_no_assignment_changes(tiny, monkeypatch, iterations):
    options, nets = small_nets(tiny, 6, iterations=iterations)
    turns = []
    assign = matching.assign

    def watched(costs, opening, z):
        turns.append((z.copy(), assign(costs, opening, z)))
        return turns[-1][1]

    monkeypatch.setattr(matching, "assign", watched)
    counts = []
    for seed in range(6):
        turns.clear()
        matching.summarise(options, *moved_prompts(seed, spread=0.6), nets)
        changed = [not (before == after).all() for before, after in turns]
        assert all(changed[:-1]) and (len(turns) == iterations or not changed[-1])
        counts.append(len(turns))
    assert max(counts) == iterations if iterations < 10 else 2 < max(counts) < 10
