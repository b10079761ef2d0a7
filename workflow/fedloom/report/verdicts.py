"""Decide what a paper claims of differences between methods, with 95 % intervals.

An experiment has few seeds, too few to resample. So the interval is that of Student's t over the
seeds' differences; with two seeds it is thirteen standard errors wide each way. Where seeds agree
by chance, t is too narrow; so the interval also spans a paired bootstrap over every seed's clients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedloom.common.seeds import numpy_generator

RESAMPLES = 2000
CONFIDENCE = 0.95
MOST_SEEDS = 100  # that a study may be told to add
POWER = 0.8  # the probability with which they would decide
Ends = tuple[float | None, float | None]
ABOVE_ZERO: Ends = (0.0, None)
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
Statistic = Literal["mean", "worst", "lowest"]
# accuracies [R rounds, ..., K clients] -> [...]
STATISTICS: dict[Statistic, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda values: values.mean(-1).mean(0),
    "worst": lambda values: values.min(-1).mean(0),
    "lowest": lambda values: values.mean(-1).min(0),
}


@dataclass(frozen=True)
class Term:
    """A method's accuracies in one scenario, as a summand of a difference.

    Attributes:
        weight: of the accuracies in the sum, as 1, -1, or 1/5 of an average of five.
        clients: whose accuracies they are; terms of the same text have the same clients in every
            seed, in the same order, and are resampled together.
        statistic: mean over clients and rounds; of the worst client, the mean over rounds; or of
            the mean over clients, the lowest of all rounds.
        values: by seed, [R rounds, K clients]; K is 1 for a number of the whole run.
        at_least: the true values are these or higher, as rounds until a target that no round met.
        count: the values follow from the method alone, and no seed changes them.
    """

    weight: float
    clients: str
    statistic: Statistic
    values: dict[int, np.ndarray]
    at_least: bool = False
    count: bool = False


@dataclass(frozen=True)
class Difference:
    """A difference over a number of seeds, and its interval, infinite where a term is a bound.

    Attributes:
        over_seeds, over_clients: half the width of the interval by Student's t, and the larger half
            of that by the bootstrap; the interval spans both.
    """

    value: float
    low: float
    high: float
    seeds: int
    over_seeds: float = 0.0
    over_clients: float = 0.0


def differences(
    terms: Sequence[Term], confidences: Sequence[float], resamples: int = RESAMPLES
) -> list[Difference]:
    """Compute the weighted sum of the terms, the mean over the seeds that all of them have.

    The interval for each of the confidences is as wide as Student's t over seeds (of two or more)
    and a percentile bootstrap over clients, which are resampled within every seed, the same for all
    terms of the same clients.
    """
    seeds = sorted(set.intersection(*(set(term.values) for term in terms)))
    each = [[t.weight * float(STATISTICS[t.statistic](t.values[k])) for t in terms] for k in seeds]
    by_seed = np.array([sum(numbers) for numbers in each])
    mean, count = float(by_seed.mean()), len(seeds)
    bounded = {math.copysign(1, term.weight) for term in terms if term.at_least}
    found = []
    over_clients = _over_clients(terms, seeds, confidences, resamples)
    for confidence, of_clients in zip(confidences, over_clients, strict=True):
        ends, half = [mean, *of_clients], 0.0
        if count > 1:
            half = float(by_seed.std(ddof=1)) * _factor(count, confidence)
            ends += [mean - half, mean + half]
        clients = max((abs(end - mean) for end in of_clients), default=0.0)
        low = -math.inf if -1 in bounded else float(min(ends))
        high = math.inf if 1 in bounded else float(max(ends))
        found.append(Difference(mean, low, high, count, half, clients))
    return found


def _factor(seeds: Any, confidence: float) -> Any:
    """Return half the width of Student's interval of a mean, in standard deviations over seeds."""
    import scipy  # here, for a plan imports tables for their keys alone

    return scipy.stats.t.ppf((1 + confidence) / 2, seeds - 1) / np.sqrt(seeds)


def _over_clients(
    terms: Sequence[Term], seeds: list[int], confidences: Sequence[float], resamples: int
) -> list[list[float]]:
    """Return the ends of the bootstrap by confidence; none if no term has two clients or more.

    It resamples positions, so that terms of one seed and the same clients stay paired.
    """
    import scipy

    sizes = {(seed, term.clients): term.values[seed].shape[-1] for seed in seeds for term in terms}
    drawn = [key for key, size in sizes.items() if size > 1]
    if not drawn:
        return [[] for _ in confidences]

    def statistic(*positions: np.ndarray, axis: int) -> np.ndarray:
        at = dict(zip(drawn, positions, strict=True))  # [..., K] each
        total = np.zeros(())
        for seed in seeds:
            for term in terms:
                values = term.values[seed]  # [R, K]
                chosen = at.get((seed, term.clients), np.zeros(1, int))
                total = total + term.weight * STATISTICS[term.statistic](values[:, chosen])
        return total / len(seeds)

    ends, result = [], None
    for confidence in confidences:
        result = scipy.stats.bootstrap(
            [np.arange(sizes[key]) for key in drawn],
            statistic,
            n_resamples=0 if result else resamples,
            bootstrap_result=result,  # the same resamples for all confidences
            confidence_level=confidence,
            method="percentile",
            vectorized=True,
            rng=numpy_generator(0, "paired bootstrap"),
        )
        ends.append([float(end) for end in result.confidence_interval])
    return ends


@dataclass(frozen=True)
class Verdict:
    """A verdict, and the comparison that it rests on.

    Attributes:
        rival: position of the comparison among those of the claim.
        reason: why it is undecided where the interval alone does not say so; "" else.
        corrected: an interval would refute the claim if it had no other rivals.
        leaning: the verdict that more seeds would lead to, if undecided with two seeds or more.
        power: the number of seeds with which one comparison would be decided with a probability of
            POWER if means and deviations stayed; None if they are more than MOST_SEEDS.
    """

    text: str
    rival: int
    difference: Difference
    reason: str = ""
    corrected: bool = False
    leaning: str | None = None
    power: int | None = None


def decide(
    rivals: Sequence[Sequence[Term]], within: Ends = ABOVE_ZERO, resamples: int = RESAMPLES
) -> Verdict:
    """Decide whether every difference lies between two ends: above zero, or within a bound.

    The claim holds if every 95 % interval lies between them. It does not hold if an interval lies
    outside; since one of several rivals may be ahead by chance, the probability of error of these
    intervals is divided by the number of rivals (Bonferroni). One seed decides nothing but counts,
    which no seed changes, and neither do seeds that do not differ.

    Args:
        rivals: the terms of each comparison.
        within: the lowest and the highest difference that are claimed; None for no such end.
    """
    corrected = 1 - (1 - CONFIDENCE) / len(rivals)
    both = [differences(terms, (CONFIDENCE, corrected), resamples) for terms in rivals]
    plain, wide = zip(*both, strict=True)
    agrees = [_inside(each, within) for each in plain]
    contradicts = [_outside(each, within) for each in wide]
    weakest = min(range(len(rivals)), key=lambda k: (agrees[k], plain[k].value))
    counts = all(term.count for terms in rivals for term in terms)
    if counts and all(each.low == each.high for each in plain):
        return Verdict(HOLDS if min(agrees) > 0 else FAILS, weakest, plain[weakest])
    if min(each.seeds for each in plain) < 2:
        return Verdict(UNDECIDED, weakest, plain[weakest], "one seed")
    same = [each.low == each.high for each in plain]  # as worst clients that are all at 0 %
    if min(agrees) > 0 and not any(same):
        return Verdict(HOLDS, weakest, plain[weakest])
    decisive = [-math.inf if s else c for s, c in zip(same, contradicts, strict=True)]
    if max(decisive) > 0:
        worst = decisive.index(max(decisive))
        return Verdict(FAILS, worst, plain[worst])
    if any(same):
        at = same.index(True)
        return Verdict(UNDECIDED, at, plain[at], "the same difference in every seed")
    refuted = any(_outside(each, within) > 0 for each in plain)
    reason = f"one of {len(rivals)} may differ by chance" if refuted else ""
    leaning, power = _power(plain, wide, within, corrected)
    return Verdict(UNDECIDED, weakest, plain[weakest], reason, refuted, leaning, power)


def _power(
    plain: Sequence[Difference], wide: Sequence[Difference], within: Ends, corrected: float
) -> tuple[str | None, int | None]:
    """Return the verdict that more seeds would lead to, and the number of seeds that it takes.

    Differences that are only bounds lead to none. A claim is refuted by one comparison whose mean
    is outside the range, if its wider interval is narrow enough; if no mean is outside, all
    intervals must be narrow enough.
    """
    if any(math.isinf(end) for each in plain for end in (each.low, each.high)):
        return None, None
    outside = [each for each in wide if _outside(_point(each), within) > 0]
    if outside:
        counts = [_seeds_needed(each, within, corrected) for each in outside]
        return FAILS, min((count for count in counts if count), default=None)
    counts = [_seeds_needed(each, within, CONFIDENCE) for each in plain]
    return HOLDS, None if None in counts else max(filter(None, counts))


def _seeds_needed(difference: Difference, within: Ends, confidence: float) -> int | None:
    """Return the number of seeds with which the interval would not reach the end of the range.

    So it is with a probability of POWER, since the mean over seeds scatters, too. With the
    same mean and deviations, the interval shrinks over seeds as Student's t does, and over clients
    with the root of the number of seeds.
    """
    import scipy  # here, for a plan imports tables for their keys alone

    counts = np.arange(2, MOST_SEEDS + 1)
    deviation = difference.over_seeds / _factor(difference.seeds, confidence)  # of one seed
    of_clients = difference.over_clients * np.sqrt(difference.seeds / counts)
    halves = np.maximum(deviation * _factor(counts, confidence), of_clients)
    halves += deviation / np.sqrt(counts) * scipy.stats.norm.ppf(POWER)
    point = _point(difference)
    enough = counts[halves < max(_inside(point, within), _outside(point, within))]
    return int(enough[0]) if len(enough) else None


def _point(difference: Difference) -> Difference:
    """Return a difference whose interval has no width."""
    return replace(difference, low=difference.value, high=difference.value)


def _inside(interval: Difference, within: Ends) -> float:
    """Return how far the nearer end of an interval lies inside the claimed range."""
    low, high = within
    below = math.inf if low is None else interval.low - low
    return min(below, math.inf if high is None else high - interval.high)


def _outside(interval: Difference, within: Ends) -> float:
    """Return how far an interval lies beyond the claimed range; negative if they overlap."""
    low, high = within
    below = -math.inf if low is None else low - interval.high
    return max(below, -math.inf if high is None else interval.low - high)
