"""Decide what a paper claims of differences, by those of a study's runs and their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.report.paired import RESAMPLES, Difference, Term, difference

CONFIDENCE = 0.95
Ends = tuple[float | None, float | None]
ABOVE_ZERO: Ends = (0.0, None)
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Verdict:
    """A verdict, and the comparison that it rests on.

    Attributes:
        rival: position of the comparison among those of the claim.
        difference: of that comparison, with its 95 % interval.
        reason: why it is undecided where the interval alone does not say so; "" else.
        corrected: an interval would refute the claim if it were the only one, but there are several
            rivals.
    """

    text: str
    rival: int
    difference: Difference
    reason: str = ""
    corrected: bool = False


def decide(
    rivals: Sequence[Sequence[Term]], within: Ends = ABOVE_ZERO, resamples: int = RESAMPLES
) -> Verdict:
    """Decide whether every difference lies between two ends: above zero, or within a bound.

    The claim holds if every 95 % interval lies between them. With several rivals one of them may be
    ahead by chance, so that the claim does not hold only if an interval lies outside whose
    probability of error is divided by the number of rivals (Bonferroni). With one seed nothing is
    decided, since no interval speaks of other seeds; but counts that no seed changes are.

    Args:
        rivals: the terms of each comparison.
        within: the lowest and the highest difference that are claimed; None for no such end.
    """
    corrected = 1 - (1 - CONFIDENCE) / len(rivals)
    plain = [difference(terms, CONFIDENCE, resamples) for terms in rivals]
    wide = [difference(terms, corrected, resamples) for terms in rivals]
    # how far an interval is from contradicting the claim, and from agreeing with it
    agrees = [_room(each, within)[0] for each in plain]
    contradicts = [_room(each, within)[1] for each in wide]
    weakest = min(range(len(rivals)), key=lambda k: (agrees[k], plain[k].value))
    counts = all(term.count for terms in rivals for term in terms)
    if counts and all(each.low == each.high for each in plain):
        return Verdict(HOLDS if min(agrees) > 0 else FAILS, weakest, plain[weakest])
    if min(each.seeds for each in plain) < 2:
        return Verdict(UNDECIDED, weakest, plain[weakest], "one seed")
    if min(agrees) > 0:
        return Verdict(HOLDS, weakest, plain[weakest])
    if max(contradicts) > 0:
        worst = max(range(len(rivals)), key=lambda k: contradicts[k])
        return Verdict(FAILS, worst, plain[worst])
    refuted = any(_room(each, within)[1] > 0 for each in plain)
    reason = f"one of {len(rivals)} may differ by chance" if refuted else ""
    return Verdict(UNDECIDED, weakest, plain[weakest], reason, refuted)


def _room(interval: Difference, within: Ends) -> tuple[float, float]:
    """Return how far the interval lies inside what is claimed, and how far wholly outside of it."""
    low, high = within
    room = [] if low is None else [(interval.low - low, low - interval.high)]
    room += [] if high is None else [(high - interval.high, interval.low - high)]
    return min(inside for inside, _ in room), max(outside for _, outside in room)
