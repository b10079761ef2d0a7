"""Estimate how long the rest of a study's run takes, from what its jobs took so far."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class TimeLeft(NamedTuple):
    """The time that the rest of a run takes.

    Attributes:
        seconds: the estimate.
        is_rough: True if most of the rest are jobs of rules of which none has told its pace yet.
    """

    seconds: float
    is_rough: bool


class Rest(NamedTuple):
    """What is left of a job at work.

    Attributes:
        rule: the job's rule.
        elapsed: seconds since it began.
        estimate: the seconds that it was estimated to take in all.
        told: the seconds left that its own progress tells; None if it has told none.
    """

    rule: str
    elapsed: float
    estimate: float
    told: float | None


@dataclass
class Pace:
    """How long jobs took beside their estimates, which assume a speed of the machine."""

    # the seconds that jobs took, and their estimates, summed over the jobs of each rule
    taken: dict[str, float] = field(default_factory=dict)
    estimated: dict[str, float] = field(default_factory=dict)

    def add(self, rule: str, taken: float, estimate: float) -> None:
        """Add a job that took so many seconds; an estimate includes its start, and is not zero."""
        self.taken[rule] = self.taken.get(rule, 0.0) + taken
        self.estimated[rule] = self.estimated.get(rule, 0.0) + estimate

    def factor(self, rule: str) -> float:
        """Return how many times as long as estimated a rule's jobs take.

        For a rule without a job so far, it is that of all rules.
        """
        if rule in self.taken:
            return self.taken[rule] / self.estimated[rule]
        return sum(self.taken.values()) / sum(self.estimated.values())


def time_left(
    pace: Pace, at_work: Iterable[Rest], waiting: Mapping[str, float], jobs_at_once: float
) -> TimeLeft | None:
    """Return the time that the rest of a run takes; None if no job has told anything yet.

    Args:
        pace: the jobs that have ended.
        at_work: the jobs at work.
        waiting: the estimated seconds of the jobs that have not begun, by rule.
        jobs_at_once: how many jobs are at work at the same time, on average.
    """
    # a job at work that tells its progress shows the pace of its rule, too
    known = Pace(dict(pace.taken), dict(pace.estimated))
    jobs = list(at_work)
    for job in jobs:
        if job.told is not None:
            known.add(job.rule, job.elapsed + job.told, job.estimate)
    if not known.taken:
        return None

    # the seconds left of each rule, and of the job at work that has the most left
    rest = defaultdict[str, float](float)
    longest = 0.0
    for job in jobs:
        left = job.told
        if left is None:
            left = max(job.estimate * known.factor(job.rule) - job.elapsed, 0.0)
        rest[job.rule] += left
        longest = max(longest, left)
    for rule, estimate in waiting.items():
        rest[rule] += estimate * known.factor(rule)

    # the last jobs may be fewer than have been at work at once
    whole = sum(rest.values())
    seconds = max(whole / max(jobs_at_once, 1.0), longest)
    unknown = sum(left for rule, left in rest.items() if rule not in known.taken)
    return TimeLeft(seconds, unknown > whole / 2)
