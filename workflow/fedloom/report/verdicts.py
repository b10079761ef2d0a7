"""Decide whether a paper's claims on differences between methods hold, by 95 % intervals.

An interval reaches from the lowest to the highest end of two intervals:

1. Student's t over the differences of the seeds. An experiment has too few seeds to resample them.
   With two seeds, this interval reaches thirteen standard errors to each side.
2. A paired bootstrap over the clients of each seed. If seeds agree by chance, the first interval
   alone is too narrow.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fedloom.common.seeds import numpy_generator

# the number of draws of clients in the bootstrap
RESAMPLES = 2000
CONFIDENCE = 0.95
# the highest number of seeds that a verdict recommends, and the probability that they decide
MOST_SEEDS = 100
POWER = 0.8
Ends = tuple[float | None, float | None]
ABOVE_ZERO: Ends = (0.0, None)
HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
# functions from accuracies [R rounds, ..., K clients] to numbers [...]:
# mean: the mean over clients and rounds
# worst: the minimum over clients, then the mean over rounds
# lowest: the mean over clients, then the minimum over rounds
STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda values: values.mean(-1).mean(0),
    "worst": lambda values: values.min(-1).mean(0),
    "lowest": lambda values: values.mean(-1).min(0),
}


@dataclass(frozen=True)
class Term:
    """A method's accuracies in one scenario, as a summand of a difference."""

    # its factor in the sum: 1, -1, or for example 1/5 in an average over five scenarios
    weight: float
    # terms with the same text have the same clients, which are resampled together
    clients: str
    # one of STATISTICS
    statistic: str
    # [R rounds, K clients] by seed; K is 1 for a number of the run
    values: dict[int, np.ndarray]
    # whether values are lower bounds, for example of the rounds to a target that was not reached
    at_least: bool = False
    # whether values are counts that follow from the method alone and are equal for all seeds
    count: bool = False


@dataclass(frozen=True)
class Difference:
    """The weighted sum of several terms, over the seeds that all terms have."""

    # the mean over seeds
    value: float
    # the sample standard deviation over seeds, 0 for one seed
    deviation: float
    seeds: int
    # the mean over seeds for every draw of clients; empty if no term has two or more clients
    resampled: np.ndarray
    # the signs of the weights of terms that are only lower bounds
    bounded: set[float]

    def over_clients(self, confidence: float) -> list[float]:
        """Return both ends of the percentile bootstrap over clients; [] if there is none."""
        # imported here, because a plan imports tables only for their keys
        import scipy

        if not len(self.resampled):
            return []
        tail = (1 - confidence) / 2
        both = scipy.stats.quantile(self.resampled, [tail, 1 - tail])
        return [float(end) for end in both]

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the lowest and the highest end of Student's interval and the bootstrap's.

        If a term is only a bound, the end that it leaves open is infinite.
        """
        half = self.deviation * _factor(max(2, self.seeds), confidence)
        ends = [*self.over_clients(confidence), self.value - half, self.value + half]
        low = float(min(ends))
        high = float(max(ends))

        # a lower bound leaves one end open: the higher one if its weight is positive
        if -1 in self.bounded:
            low = -math.inf
        if 1 in self.bounded:
            high = math.inf
        return low, high


def difference(terms: Sequence[Term]) -> Difference:
    """Compute the weighted sum of the terms, and a paired bootstrap over every seed's clients."""
    seeds = sorted(set.intersection(*(set(term.values) for term in terms)))

    # the sum of terms by seed, and the sum over all seeds by draw of clients
    rng = numpy_generator(0, "paired bootstrap")
    drawn = dict[tuple[int, str], np.ndarray]()
    by_seed = np.zeros(len(seeds))
    total = np.zeros(())
    for position, seed in enumerate(seeds):
        for term in terms:
            statistic = STATISTICS[term.statistic]
            values = term.values[seed]  # [R, K]

            # terms of the same clients share their draws, which makes the bootstrap a paired one
            key = (seed, term.clients)
            clients = values.shape[-1]
            if clients > 1 and key not in drawn:
                drawn[key] = rng.integers(clients, size=(RESAMPLES, clients))
            chosen = values[:, drawn.get(key, np.zeros(1, int))]

            total = total + term.weight * statistic(chosen)
            by_seed[position] += term.weight * float(statistic(values))

    bounded = {math.copysign(1, term.weight) for term in terms if term.at_least}
    deviation = 0.0
    if len(seeds) > 1:
        deviation = float(by_seed.std(ddof=1))
    resampled = np.zeros(0)
    if drawn:
        resampled = total / len(seeds)
    return Difference(float(by_seed.mean()), deviation, len(seeds), resampled, bounded)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return both ends of Student's 95 % interval of the mean of values [seeds].

    Both ends are the mean if there is only one value.
    """
    mean = float(values.mean())
    if len(values) == 1:
        return mean, mean
    half = float(values.std(ddof=1)) * float(_factor(len(values), CONFIDENCE))
    return mean - half, mean + half


def _factor(seeds: Any, confidence: float) -> Any:
    """Return half the width of Student's interval of a mean over seeds.

    The unit is the standard deviation over seeds. `seeds` is a number or an array of numbers.
    """
    import scipy

    return scipy.stats.t.ppf((1 + confidence) / 2, seeds - 1) / np.sqrt(seeds)


@dataclass(frozen=True)
class Verdict:
    """A verdict, with the comparison that decided it."""

    text: str
    # position of the comparison among those of the claim
    rival: int
    difference: Difference
    # why the claim is undecided, if the interval alone does not show it
    reason: str = ""
    # the verdict to which more seeds would lead, and the number of seeds in all that it takes with
    # a probability of POWER; infinite if that is more than MOST_SEEDS
    leaning: str | None = None
    power: float = math.inf


def decide(rivals: Sequence[Sequence[Term]], within: Ends = ABOVE_ZERO) -> Verdict:
    """Decide whether a claim holds: whether the difference to every rival lies in a range.

    - The claim holds if the 95 % interval of every difference lies within the range.
    - It does not hold if an interval lies outside. One of several rivals may lie outside by chance.
      Therefore the probability of error of these intervals is divided by the number of rivals
      (Bonferroni).
    - Otherwise it is undecided.

    One seed decides nothing except counts, and neither does a difference that is the same in all
    seeds.

    Args:
        rivals: the terms of the difference to each rival.
        within: the lower and the upper end of the range; None: no end.
    """
    found = [difference(terms) for terms in rivals]
    corrected = 1 - (1 - CONFIDENCE) / len(rivals)
    margins = [_interval_margins(each, within, corrected) for each in found]
    all_inside = min(each.inside for each in margins) > 0
    constant = [each.is_constant for each in margins]
    outside = [each.outside for each in margins]

    # the rival that comes nearest to contradicting the claim
    nearest = min(range(len(rivals)), key=lambda k: (margins[k].inside, found[k].value))

    # counts decide even with one seed; all other numbers need several seeds that differ
    if all(constant) and all(term.count for term in chain.from_iterable(rivals)):
        return Verdict(HOLDS if all_inside else FAILS, nearest, found[nearest])
    if min(each.seeds for each in found) < 2:
        return Verdict(UNDECIDED, nearest, found[nearest], "one seed")
    if all_inside and not any(constant):
        return Verdict(HOLDS, nearest, found[nearest])
    if max(outside) > 0:
        rival = outside.index(max(outside))
        return Verdict(FAILS, rival, found[rival])
    if any(constant):
        rival = constant.index(True)
        return Verdict(UNDECIDED, rival, found[rival], "the same difference in every seed")

    # an interval reaches over an end of the range
    reason = ""
    if max(each.beyond for each in margins) > 0:
        reason = f"one of {len(rivals)} may differ by chance"
    leaning, power = _power(found, within, corrected)
    return Verdict(UNDECIDED, nearest, found[nearest], reason, leaning, power)


@dataclass(frozen=True)
class _IntervalMargins:
    """How far the intervals of one difference lie within a range, and beyond it."""

    # how far the whole 95 % interval lies within the range; negative if a part of it does not
    inside: float
    # how far the whole 95 % interval lies beyond an end of the range; negative if a part does not
    beyond: float
    # the same as `beyond` for the wider interval, which is corrected for several rivals
    outside: float
    # True if the interval is a single number, for example if all worst clients are at 0 %
    is_constant: bool


def _interval_margins(found: Difference, within: Ends, corrected: float) -> _IntervalMargins:
    """Compare the intervals of a difference with a range.

    `corrected` is the confidence of the wider interval. A difference that is the same in all seeds
    has no wider interval, and is never outside.
    """
    low, high = found.interval()
    inside, beyond = _margins((low, high), within)
    if low == high:
        return _IntervalMargins(inside, beyond, -math.inf, True)
    _, outside = _margins(found.interval(corrected), within)
    return _IntervalMargins(inside, beyond, outside, False)


def _power(found: Sequence[Difference], within: Ends, corrected: float) -> tuple[str | None, float]:
    """Return the verdict to which more seeds would lead, and how many seeds in all it takes.

    - If a mean lies outside the range, the claim fails as soon as the wider interval of one such
      difference is narrow enough.
    - If no mean lies outside, the claim holds as soon as all intervals are narrow enough.
    - If a difference is only a bound, the result is None and infinity.
    """
    if any(each.bounded for each in found):
        return None, math.inf
    outside = [each for each in found if _margins((each.value, each.value), within)[1] > 0]
    if outside:
        return FAILS, min(_seeds_needed(each, within, corrected) for each in outside)
    return HOLDS, max(_seeds_needed(each, within, CONFIDENCE) for each in found)


def _seeds_needed(difference: Difference, within: Ends, confidence: float) -> float:
    """Return how many seeds it takes until the interval lies within or outside the range.

    With this number of seeds, it does so with probability POWER, since the mean scatters, too. The
    result is infinite above MOST_SEEDS. The estimate assumes the following:

    - The mean and the deviations stay as they are.
    - The interval narrows as Student's t over seeds, and as 1 / sqrt(seeds) over clients.
    """
    import scipy

    # half the width of the interval, by number of seeds: the larger one of seeds and clients
    counts = np.arange(2, MOST_SEEDS + 1)
    mean = difference.value
    clients = max((abs(end - mean) for end in difference.over_clients(confidence)), default=0.0)
    client_halves = clients * np.sqrt(difference.seeds / counts)
    halves = np.maximum(difference.deviation * _factor(counts, confidence), client_halves)

    # add how far the mean may scatter
    halves += difference.deviation / np.sqrt(counts) * scipy.stats.norm.ppf(POWER)
    return min(counts[halves < max(_margins((mean, mean), within))].tolist(), default=math.inf)


def _margins(interval: tuple[float, float], within: Ends) -> tuple[float, float]:
    """Return how far an interval lies inside the claimed range, and how far beyond it.

    A number is negative if a part of the interval does not lie there.
    """
    low, high = within
    margins = []
    if low is not None:
        margins.append((interval[0] - low, low - interval[1]))
    if high is not None:
        margins.append((high - interval[1], interval[0] - high))
    inside, beyond = zip(*margins, strict=True)
    return min(inside), max(beyond)
