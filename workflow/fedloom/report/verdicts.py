"""Decide whether a paper's claims on differences between methods hold, by 95 % intervals.

An experiment has few seeds, too few to resample. So the interval is that of Student's t over the
seeds' differences; with two seeds it is thirteen standard errors wide each way. Where seeds agree
by chance, t is too narrow; so the interval also spans a paired bootstrap over every seed's clients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fedloom.common.seeds import numpy_generator

RESAMPLES = 2000
CONFIDENCE = 0.95
# the most seeds that a study may be told to add, and the probability with which they would decide
MOST_SEEDS = 100
POWER = 0.8
Ends = tuple[float | None, float | None]
ABOVE_ZERO: Ends = (0.0, None)
HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
# accuracies [R rounds, ..., K clients] -> [...]: mean over clients and rounds; of the worst client,
# the mean over rounds; of the mean over clients, the lowest of all rounds
STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda values: values.mean(-1).mean(0),
    "worst": lambda values: values.min(-1).mean(0),
    "lowest": lambda values: values.mean(-1).min(0),
}


@dataclass(frozen=True)
class Term:
    """A method's accuracies in one scenario, as a summand of a difference."""

    # its factor in the sum, as 1, -1, or 1/5 of an average of five
    weight: float
    # terms with the same text have the same clients, which are resampled together
    clients: str
    # one of STATISTICS
    statistic: str
    # [R rounds, K clients] by seed; K is 1 for a number of the run
    values: dict[int, np.ndarray]
    # whether values are bounds, as rounds until a target that no round met
    at_least: bool = False
    # whether they follow from the method alone, so that no seed changes them
    count: bool = False


@dataclass(frozen=True)
class Difference:
    """The weighted sum of terms, the mean over the seeds that all of them have."""

    value: float
    # the sample standard deviation over seeds, 0 for one seed
    deviation: float
    seeds: int
    # the sum for every draw of clients; empty if no term has two or more clients
    resampled: np.ndarray
    # signs of the terms that are only bounds
    bounded: set[float]

    def over_clients(self, confidence: float) -> list[float]:
        """Return the ends of a percentile bootstrap over clients, if there is one."""
        # imported here, for a plan imports tables for their keys alone
        import scipy

        if not len(self.resampled):
            return []
        tail = (1 - confidence) / 2
        both = scipy.stats.quantile(self.resampled, [tail, 1 - tail])
        return [float(end) for end in both]

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the outer ends of Student's interval and the bootstrap's, infinite for bounds."""
        half = self.deviation * _factor(max(2, self.seeds), confidence)
        ends = [*self.over_clients(confidence), self.value - half, self.value + half]
        low = float(min(ends))
        high = float(max(ends))

        # a bound leaves the end open on its side
        if -1 in self.bounded:
            low = -math.inf
        if 1 in self.bounded:
            high = math.inf
        return low, high


def difference(terms: Sequence[Term], resamples: int = RESAMPLES) -> Difference:
    """Compute the weighted sum of the terms, and a paired bootstrap over every seed's clients."""
    seeds = sorted(set.intersection(*(set(term.values) for term in terms)))

    # the sum of every seed, and over seeds that of every draw of clients
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
                drawn[key] = rng.integers(clients, size=(resamples, clients))
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


def _factor(seeds: Any, confidence: float) -> Any:
    """Return half the width of Student's interval of a mean, in standard deviations over seeds."""
    import scipy

    return scipy.stats.t.ppf((1 + confidence) / 2, seeds - 1) / np.sqrt(seeds)


@dataclass(frozen=True)
class Verdict:
    """A verdict, with the comparison that decided it."""

    text: str
    # position of the comparison among those of the claim
    rival: int
    difference: Difference
    # why it is undecided where the interval alone does not say so
    reason: str = ""
    # the verdict that more seeds would lead to, and the number of seeds with which one comparison
    # would be decided with a probability of POWER; infinite if they are more than MOST_SEEDS
    leaning: str | None = None
    power: float = math.inf


def decide(
    rivals: Sequence[Sequence[Term]], within: Ends = ABOVE_ZERO, resamples: int = RESAMPLES
) -> Verdict:
    """Decide whether the difference of every rival's terms lies between two ends.

    The claim holds if every 95 % interval does. It does not hold if an interval lies outside; as
    one of several rivals may be ahead by chance, the probability of error of these is divided by
    their number (Bonferroni). One seed decides nothing but counts, and neither do equal seeds.
    """
    # how far each 95 % interval lies within the range, and beyond it
    found = [difference(terms, resamples) for terms in rivals]
    plain = [each.interval() for each in found]
    inside, beyond = zip(*(_margins(each, within) for each in plain), strict=True)

    # how far each wider interval lies beyond it; those of equal seeds, as of worst clients that are
    # all at 0 %, decide nothing
    same = [low == high for low, high in plain]
    corrected = 1 - (1 - CONFIDENCE) / len(rivals)
    outside = []
    for each, is_same in zip(found, same, strict=True):
        _, out = _margins(each.interval(corrected), within)
        outside.append(-math.inf if is_same else out)

    # the rival that is nearest to contradict the claim
    rival = min(range(len(rivals)), key=lambda k: (inside[k], found[k].value))

    text = UNDECIDED
    reason = ""
    leaning = None
    power = math.inf

    # counts decide even with one seed; all else needs more, and intervals on one side of an end
    if all(same) and all(term.count for term in chain.from_iterable(rivals)):
        text = FAILS
        if min(inside) > 0:
            text = HOLDS
    elif min(each.seeds for each in found) < 2:
        reason = "one seed"
    elif min(inside) > 0 and not any(same):
        text = HOLDS
    elif max(outside) > 0:
        text = FAILS
        rival = outside.index(max(outside))
    elif any(same):
        rival = same.index(True)
        reason = "the same difference in every seed"
    else:
        # an interval reaches over an end of the range
        if max(beyond) > 0:
            reason = f"one of {len(rivals)} may differ by chance"
        leaning, power = _power(found, within, corrected)
    return Verdict(text, rival, found[rival], reason, leaning, power)


def _power(found: Sequence[Difference], within: Ends, corrected: float) -> tuple[str | None, float]:
    """Return the verdict that more seeds would lead to, none for bounds, and how many it takes.

    A claim is refuted by one comparison whose mean is outside the range, if its wider interval is
    narrow enough; if no mean is outside, all intervals must be narrow enough.
    """
    if any(each.bounded for each in found):
        return None, math.inf
    outside = [each for each in found if _margins((each.value, each.value), within)[1] > 0]
    if outside:
        return FAILS, min(_seeds_needed(each, within, corrected) for each in outside)
    return HOLDS, max(_seeds_needed(each, within, CONFIDENCE) for each in found)


def _seeds_needed(difference: Difference, within: Ends, confidence: float) -> float:
    """Return the number of seeds with which the interval would not reach the end of the range.

    So it is with a probability of POWER, since the mean scatters, too. With the same mean and
    deviations, the interval shrinks over seeds as Student's t does, and over clients with the root
    of the number of seeds.
    """
    import scipy

    # half the interval with each number of seeds: the wider one of those over seeds and clients
    counts = np.arange(2, MOST_SEEDS + 1)
    mean = difference.value
    clients = max((abs(end - mean) for end in difference.over_clients(confidence)), default=0.0)
    of_clients = clients * np.sqrt(difference.seeds / counts)
    halves = np.maximum(difference.deviation * _factor(counts, confidence), of_clients)

    # and how far the mean may scatter
    halves += difference.deviation / np.sqrt(counts) * scipy.stats.norm.ppf(POWER)
    return min(counts[halves < max(_margins((mean, mean), within))].tolist(), default=math.inf)


def _margins(interval: tuple[float, float], within: Ends) -> tuple[float, float]:
    """Return how far an interval lies inside the claimed range, and how far beyond it."""
    low, high = within
    margins = []
    if low is not None:
        margins.append((interval[0] - low, low - interval[1]))
    if high is not None:
        margins.append((high - interval[1], interval[0] - high))
    inside, beyond = zip(*margins, strict=True)
    return min(inside), max(beyond)
