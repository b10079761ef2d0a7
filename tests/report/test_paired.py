"""Differences between methods: intervals over seeds and clients, and verdicts, by simulation."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedloom.report import verdicts
from fedloom.report.verdicts import FAILS, HOLDS, UNDECIDED, Difference, Term, decide
from fedloom.report.verdicts import difference as computed


def _values(*seeds):
    """Return accuracies [1, K] by seed."""
    return {seed: np.array([row], float) for seed, row in enumerate(seeds)}


def difference(terms, confidence=0.95):
    found = computed(terms)
    low, high = found.interval(confidence)
    return SimpleNamespace(value=found.value, seeds=found.seeds, low=low, high=high)


def _pair(above, below, statistic="mean"):
    return [Term(1, "c", statistic, above), Term(-1, "c", statistic, below)]


def test_the_difference_is_that_of_the_means_over_clients_rounds_and_seeds():
    above = {0: np.array([[80.0, 90], [60, 75]]), 1: np.array([[50.0, 50], [50, 70]])}
    below = {0: np.array([[70.0, 80], [60, 70]]), 1: np.array([[30.0, 40], [50, 60]])}
    found = difference(_pair(above, below))
    assert found.value == ((76.25 - 70) + (55 - 45)) / 2
    assert found.seeds == 2
    worst = difference(_pair(above, below, "worst"))
    # worst of each round, then the mean over rounds: (80 + 60)/2 - (70 + 60)/2 and 50 - (30 + 50)/2
    assert worst.value == (5 + 10) / 2
    # mean of each round, then the lowest: 67.5 - 65 and 50 - 35
    assert difference(_pair(above, below, "lowest")).value == (2.5 + 15) / 2


def test_only_seeds_that_every_method_has_are_compared():
    above = _values([70.0, 70], [50.0, 50], [90.0, 90])
    below = {0: np.array([[60.0, 60]]), 2: np.array([[60.0, 60]]), 7: np.array([[0.0, 0]])}
    found = difference(_pair(above, below))
    assert (found.value, found.seeds) == ((10 + 30) / 2, 2)


def test_the_bootstraps_interval_leaves_out_equal_shares_at_both_ends():
    found = Difference(500.0, 0.0, 2, np.arange(1001.0), set())
    assert found.over_clients(0.95) == pytest.approx([25, 975])
    assert found.over_clients(0.5) == pytest.approx([250, 750])
    assert found.interval(0.95) == pytest.approx((25, 975))
    assert Difference(500.0, 0.0, 2, np.zeros(0), set()).over_clients(0.95) == []


def test_two_clients_are_resampled_and_one_number_of_a_run_is_not():
    """A quarter of the draws takes the better of two clients twice, and a quarter the other."""
    above = _values([80.0, 60], [80.0, 60])
    below = _values([50.0, 50], [50.0, 50])
    found = difference(_pair(above, below))
    assert (found.value, found.low, found.high) == (20, 10, 30)
    above = _values([70.0], [70.0])
    below = _values([50.0], [50.0])
    found = difference(_pair(above, below))
    assert (found.value, found.low, found.high) == (20, 20, 20)


def test_the_interval_over_seeds_is_students():
    """The bootstrap over clients has no width where all clients agree."""
    differences = [1.0, 2.0, 4.5]
    above = _values(*([50 + d] * 4 for d in differences))
    below = _values(*([50] * 4,) * 3)
    found = difference(_pair(above, below))
    expected = stats.t.interval(0.95, 2, np.mean(differences), stats.sem(differences))
    assert (found.low, found.high) == pytest.approx(expected)
    wide = difference(_pair(above, below), confidence=0.99)
    assert wide.low < found.low and wide.high > found.high


def test_seeds_that_agree_by_chance_leave_the_width_of_their_clients():
    """Student's interval would have no width, because both seeds have a difference of 5."""
    above = _values([60, 70, 50, 60], [60, 50, 60, 70])
    below = _values(*([55] * 4,) * 2)
    found = difference(_pair(above, below))
    assert found.value == 5 and found.low < 1 and found.high > 9


def test_clients_are_paired_within_a_seed():
    """Clients differ by 30 points, but methods by one point on every client, which is certain."""
    level = np.linspace(50, 80, 12)
    above = _values(level + 1, level[::-1] + 1)
    below = _values(level, level[::-1])
    found = difference(_pair(above, below))
    assert (found.low, found.high) == pytest.approx((1, 1))
    apart = [Term(1, "c", "mean", above), Term(-1, "others", "mean", below)]
    loose = difference(apart)
    assert loose.low < -3 and loose.high > 5, "other clients are resampled by themselves"


def test_the_same_runs_give_the_same_interval():
    draw = np.random.default_rng(0)
    terms = _pair(_values(draw.normal(60, 9, 20)), _values(draw.normal(60, 9, 20)))
    np.random.seed(0)
    first = difference(terms)
    np.random.seed(1)
    assert difference(terms) == first


def _simulate(draw, seeds, clients, truth, spread, statistic):
    """Return terms of methods that differ by `truth` in expectation.

    Seeds, clients and images add noise.
    """
    above = {}
    below = {}
    for seed in range(seeds):
        level = draw.normal(0.7, 0.06, clients)
        for values, shift in ((above, truth / 100), (below, 0.0)):
            chance = np.clip(level + shift + draw.normal(0, spread), 0.01, 0.99)
            values[seed] = 100 * draw.binomial(20, chance)[None] / 20
    return _pair(above, below, statistic)


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize(("statistic", "truth"), [("mean", 4.0), ("worst", 0.0)])
def test_of_a_hundred_intervals_about_95_hold_the_truth(seeds, statistic, truth, monkeypatch):
    """Intervals of a bootstrap over clients alone would hold the truth only 75 times."""
    monkeypatch.setattr(verdicts, "RESAMPLES", 100)
    draw = np.random.default_rng(7)
    trials = 300
    held = 0
    for _ in range(trials):
        terms = _simulate(draw, seeds, 20, truth, 0.03, statistic)
        found = difference(terms)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / trials <= 1.0


def test_many_seeds_decide_a_difference_and_two_do_not():
    draw = np.random.default_rng(3)
    found = {n: difference(_simulate(draw, n, 20, 6.0, 0.02, "mean")) for n in (2, 8)}
    assert found[8].low > 0
    assert found[2].low < 0 < found[2].high


@pytest.mark.parametrize("seeds", [2, 5])
def test_the_best_of_equals_is_no_finding(seeds, monkeypatch):
    """One method is claimed to be above four others that are as good."""
    monkeypatch.setattr(verdicts, "RESAMPLES", 100)
    draw = np.random.default_rng(11)
    trials = 150
    texts = []
    for _ in range(trials):
        one, *others = (_simulate(draw, seeds, 12, 0.0, 0.02, "mean")[0] for _ in range(5))
        rivals = [[one, Term(-1, "c", "mean", other.values)] for other in others]
        texts.append(decide(rivals).text)
    assert np.mean([text == HOLDS for text in texts]) <= 0.04
    assert np.mean([text == FAILS for text in texts]) <= 0.07


def _seeds_of(*differences):
    """Return a comparison whose seeds have these differences on every client."""
    return _pair(
        _values(*([50 + d] * 3 for d in differences)), _values(*([50] * 3 for _ in differences))
    )


def test_a_claim_holds_if_all_rivals_are_below():
    clear = _seeds_of(5, 5.1, 4.9)
    unclear = _seeds_of(9, 1, -7)
    against = _seeds_of(-3, -3.1, -2.9)
    assert decide([clear]).text == HOLDS
    assert decide([clear, _seeds_of(8, 8.1, 7.9)]).rival == 0, "the nearest is named"
    found = decide([clear, unclear])
    assert (found.text, found.rival) == (UNDECIDED, 1)
    found = decide([clear, unclear, against])
    assert (found.text, found.rival) == (FAILS, 2)


def test_more_rivals_make_it_harder_to_refute_a_claim():
    against = _seeds_of(-3, -1.6, -2.3)  # its 95 % interval is [-4.0, -0.6]
    assert decide([against]).text == FAILS
    found = decide([against] * 6)
    assert (found.text, found.reason) == (UNDECIDED, "one of 6 may differ by chance")
    clearly = _seeds_of(-3, -3.1, -2.9)
    found = decide([clearly] * 6)
    assert (found.text, found.reason) == (FAILS, "")


def _spread(mean, deviation, seeds):
    """Return a comparison whose seeds have this mean and standard deviation."""
    steps = np.linspace(-1, 1, seeds)
    return _seeds_of(*(mean + deviation * steps / steps.std(ddof=1)))


@pytest.mark.parametrize(
    ("means", "within", "leaning", "margin", "confidence"),
    [
        ((2, 9), (0, None), HOLDS, 2, 0.95),
        ((2, -2, 9), (0, None), FAILS, 2, 1 - 0.05 / 3),
        ((2,), (-5, 5), HOLDS, 3, 0.95),
    ],
)
def test_the_number_of_seeds_that_would_decide_four_times_in_five(
    means, within, leaning, margin, confidence
):
    few = decide([_spread(mean, 3, 3) for mean in means], within)
    assert (few.text, few.leaning) == (UNDECIDED, leaning)

    def probability(seeds):  # that Student's t of normal draws exceeds its critical value
        critical = stats.t.ppf((1 + confidence) / 2, seeds - 1)
        return stats.nct.sf(critical, seeds - 1, margin * np.sqrt(seeds) / 3)

    assert probability(few.power) == pytest.approx(0.8, abs=0.04)


def test_seeds_that_do_not_differ_decide_nothing():
    """Worst clients at 0 % do not differ, nor do rounds counted in steps of an evaluation."""
    for value in (0, 2):
        found = decide([_seeds_of(value, value, value)], (0.5, None))
        assert (found.text, found.power) == (UNDECIDED, math.inf)
    assert decide([_seeds_of(0, 0, 0), _seeds_of(-5.1, -5, -4.9)]).text == FAILS


def _agreeing(seeds):
    """Return a comparison whose seeds agree on a difference of 0.5, while clients do not."""
    clients = 50 + np.array([5.5, -4.5] * 4)
    return _pair(_values(*[clients] * seeds), _values(*[[50] * 8] * seeds))


def test_the_width_over_clients_shrinks_with_the_root_of_the_number_of_seeds():
    few = decide([_agreeing(2)])
    assert (few.text, few.leaning) == (UNDECIDED, HOLDS)
    assert decide([_agreeing(round(1.3 * few.power))]).text == HOLDS
    assert decide([_agreeing(round(few.power / 1.3))]).text == UNDECIDED


def test_more_seeds_than_anyone_trains_are_not_counted():
    found = decide([_spread(0.1, 3, 3)])
    assert (found.leaning, found.power) == (HOLDS, math.inf)
    assert decide([_spread(0.01, 3, 101)]).power == math.inf


def test_one_seed_decides_nothing():
    found = decide([_seeds_of(20)])
    assert (found.text, found.reason) == (UNDECIDED, "one seed")
    assert found.difference.value == 20


def test_counts_that_no_seed_changes_need_no_seeds():
    def counts(*differences):
        return [replace(term, count=True) for term in _seeds_of(*differences)]

    assert decide([counts(40)]).text == HOLDS
    assert decide([counts(40), counts(-1)]).text == FAILS
    assert decide([counts(0)]).text == FAILS, "as many are not fewer"
    assert decide([counts(40, -40)]).text == UNDECIDED, "where seeds do change them"


def test_differences_within_a_bound():
    one = (-1, 1)
    assert decide([_seeds_of(0.3, 0.2, 0.4)], within=one).text == HOLDS
    assert decide([_seeds_of(-0.3, -0.2, -0.4)], within=one).text == HOLDS
    assert decide([_seeds_of(3.0, 3.1, 2.9)], within=one).text == FAILS
    assert decide([_seeds_of(-3.0, -3.1, -2.9)], within=one).text == FAILS
    assert decide([_seeds_of(1.0, 1.1, 0.9)], within=one).text == UNDECIDED


def test_a_bound_may_have_a_direction():
    """A bound of 0 to 1 point holds a slightly better method, but no slightly worse one."""
    better = (0, 1)
    assert decide([_seeds_of(0.5, 0.4, 0.6)], within=better).text == HOLDS
    assert decide([_seeds_of(-0.9, -0.8, -1.0)], within=better).text == FAILS
    assert decide([_seeds_of(1.9, 1.8, 2.0)], within=better).text == FAILS
    assert decide([_seeds_of(-0.9, -0.8, -1.0)], within=(None, 1)).text == HOLDS
    assert decide([_seeds_of(1.9, 1.8, 2.0)], within=(None, 1)).text == FAILS
    assert decide([_seeds_of(9.0, 9.1, 8.9)], within=(-1, None)).text == HOLDS
