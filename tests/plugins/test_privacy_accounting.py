"""The epsilon that rounds of Gaussian noise spend, against exact values."""

import math

import pytest
from scipy import integrate, stats

from fedloom.federated.round import initial_state, train_round
from fedloom.toolbox import gaussian_epsilon
from sent_updates import wrapped_runs


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which wrappers lie around a method."""
    return wrapped_runs(tmp_path)


@pytest.mark.parametrize(("sampling", "q"), [("poisson", 3 / 5), ("study", 1.0)])
def test_epsilon_after_every_round_is_a_column_and_grows(run, sampling, q):
    """If the study selects the clients, epsilon is that of training all of them (q = 1)."""
    task, hooks = run("dp_gaussian", noise=2.0, delta=1e-4, sampling=sampling)
    state = initial_state(task, hooks)
    spent = []
    for number in (1, 2, 3):
        state, row = train_round(task.at(number), hooks, state)
        spent.append(row.metrics["epsilon"])
    expected = [gaussian_epsilon(2.0, q, t, 1e-4) for t in (1, 2, 3)]
    assert spent == expected and 0 < spent[0] < spent[1] < spent[2]
    assert initial_state(task, hooks).server["metrics"]["epsilon"] == 0.0


def hockey_stick(epsilon, q, z):
    """Return the exact delta of a round of the sampled Gaussian mechanism, by integration."""

    def delta(p0, p1):
        def rest(x):
            return max(0.0, p0(x) - math.exp(epsilon) * p1(x))

        return integrate.quad(rest, -12 * z, 1 + 12 * z, limit=500)[0]

    without = stats.norm(0, z).pdf
    within = stats.norm(1, z).pdf

    def mixed(x):
        return (1 - q) * without(x) + q * within(x)

    return max(delta(mixed, without), delta(without, mixed))


@pytest.mark.parametrize(("q", "z"), [(1.0, 2.0), (0.2, 1.0), (0.6, 4.0)])
def test_epsilon_bounds_the_exact_one_of_a_round_and_is_not_far_from_it(q, z):
    epsilon = gaussian_epsilon(z, q, 1, 1e-3)
    assert hockey_stick(epsilon, q, z) <= 1e-3
    assert hockey_stick(0.5 * epsilon, q, z) > 1e-3, "half of it is too little"


def test_epsilon_of_many_rounds_without_sampling_is_that_of_one_with_less_noise():
    """T Gaussians with noise multiplier z amount to one with z / sqrt(T)."""
    one = gaussian_epsilon(1.0, 1.0, 1, 1e-5)
    assert gaussian_epsilon(4.0, 1.0, 16, 1e-5) == pytest.approx(one, rel=1e-9)
    assert gaussian_epsilon(1.0, 0.1, 10, 1e-5) < gaussian_epsilon(1.0, 1.0, 10, 1e-5)


def test_epsilon_is_not_negative_however_large_delta_is():
    """A mechanism is always (0, delta)-private for a delta near 1; the formula gives -3.3."""
    assert gaussian_epsilon(4.0, 0.1, 1, 0.9999) == 0.0
    spent = [gaussian_epsilon(4.0, 0.1, 1, delta) for delta in (1e-5, 0.1, 0.5, 0.9, 0.9999)]
    assert spent == sorted(spent, reverse=True) and spent[0] > 0
