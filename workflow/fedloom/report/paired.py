"""How far two methods differ, with a 95 % interval over seeds and clients.

A seed draws a partition, the clients of every round and the first weights, and an experiment has
few of them. So the interval is that of Student's t over the seeds' differences: with two seeds it
is thirteen standard errors wide each way, and rarely decides anything. A bootstrap that resamples
two or three seeds would be far too narrow: the variance of n resampled seeds is (n - 1) / n of that
of n new ones. Where seeds agree by chance, as the accuracies of few images do, t is too narrow; so
the interval also spans a paired bootstrap over the clients of every seed, and is as wide as both.
One seed alone has no interval that speaks of other seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedloom.common.seeds import numpy_generator

RESAMPLES = 2000
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
        weight: what the accuracies count in the sum, as 1, -1, or 1/5 of an average of five.
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
    """A difference with its interval, which has no end where a term is only bounded.

    `seeds` is the number of them.
    """

    value: float
    low: float
    high: float
    seeds: int


def difference(
    terms: Sequence[Term], confidence: float = 0.95, resamples: int = RESAMPLES
) -> Difference:
    """Compute the weighted sum of the terms, the mean over the seeds that all of them have.

    The interval covers the expectation over seeds and clients. It is as wide as Student's t over
    seeds (of two or more) and a percentile bootstrap over clients, which are resampled within every
    seed, the same for all terms of the same clients.

    Raises:
        ValueError: the terms have no seed in common.
    """
    import scipy  # here, for a plan imports tables for their keys alone

    seeds = sorted(set.intersection(*(set(term.values) for term in terms)))
    if not seeds:
        raise ValueError("the terms have no seed in common")
    by_seed = np.array([_sum(terms, seed) for seed in seeds])
    ends = [by_seed.mean(), by_seed.mean()]
    if len(seeds) > 1:
        error = by_seed.std(ddof=1) / np.sqrt(len(seeds))
        half = error * scipy.stats.t.ppf((1 + confidence) / 2, len(seeds) - 1)
        ends += [by_seed.mean() - half, by_seed.mean() + half]
    ends += _over_clients(terms, seeds, confidence, resamples)
    bounded = {math.copysign(1, term.weight) for term in terms if term.at_least}
    low = -math.inf if -1 in bounded else float(min(ends))
    high = math.inf if 1 in bounded else float(max(ends))
    return Difference(float(by_seed.mean()), low, high, len(seeds))


def _sum(terms: Sequence[Term], seed: int) -> float:
    """Return the weighted sum of the terms in one seed."""
    return sum(term.weight * float(STATISTICS[term.statistic](term.values[seed])) for term in terms)


def _over_clients(
    terms: Sequence[Term], seeds: list[int], confidence: float, resamples: int
) -> list[float]:
    """Return the ends of the bootstrap over clients; none if no term has two clients or more.

    What is resampled are positions of clients, so that the terms of one seed and the same clients
    stay paired, and the worst client is that of the clients that were drawn.
    """
    sizes = {(seed, term.clients): term.values[seed].shape[-1] for seed in seeds for term in terms}
    drawn = [key for key, size in sizes.items() if size > 1]
    if not drawn:
        return []

    def statistic(*positions: np.ndarray, axis: int) -> np.ndarray:
        at = dict(zip(drawn, positions, strict=True))  # [..., K] each
        total = np.zeros(())
        for seed in seeds:
            for term in terms:
                values = term.values[seed]  # [R, K]
                chosen = at.get((seed, term.clients), np.zeros(1, int))
                total = total + term.weight * STATISTICS[term.statistic](values[:, chosen])
        return total / len(seeds)

    import scipy

    result = scipy.stats.bootstrap(
        [np.arange(sizes[key]) for key in drawn],
        statistic,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        vectorized=True,
        rng=numpy_generator(0, "paired bootstrap"),
    )
    return [float(end) for end in result.confidence_interval]
