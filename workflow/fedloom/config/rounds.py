"""The rounds of a run: after which a job ends, clients are evaluated, and tables report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedloom.common.errors import FedLoomError
from fedloom.config.reading import CONFIG

if TYPE_CHECKING:
    from fedloom.config.study import Study


def job_ends(study: Study) -> list[int]:
    """List the rounds at which a job ends: multiples of rounds_per_job, and the last round."""
    return [*range(study.rounds_per_job, study.rounds, study.rounds_per_job), study.rounds]


def wanted_rounds(study: Study) -> list[int]:
    """List the rounds that study.evaluate_every asks for, and the last."""
    return [*range(study.evaluate_every, study.rounds, study.evaluate_every), study.rounds]


def evaluated_rounds(study: Study) -> list[int]:
    """List the rounds after which clients are evaluated.

    A job's last round is always one of them, also when a later job follows: else extending a
    study would change what an earlier job was asked for, and run it again.
    """
    return sorted({*wanted_rounds(study), *job_ends(study)})


@dataclass(frozen=True)
class Reported:
    """What tables report of a run.

    The worst accuracy is the lowest mean over clients after one of the rounds `worst_of`; without
    these, that of the worst client, averaged over `rounds`.
    """

    rounds: tuple[int, ...]  # evaluated rounds to average
    worst_of: tuple[int, ...] = ()


def reported(study: Study, where: str = f"{CONFIG} study") -> Reported:
    """Return the evaluated rounds that the tables average, of a study as a run has it."""
    evaluated = wanted_rounds(study)
    counts = {
        "last_evaluations": study.report.last_evaluations,
        "worst_of_evaluations": study.report.worst_of_evaluations or 0,
    }
    for key, count in counts.items():
        if count > len(evaluated):
            raise FedLoomError(
                f"{where}.report.{key}: {count}, but only {len(evaluated)} rounds are evaluated "
                f"(every {study.evaluate_every} of {study.rounds}: study.evaluate_every)"
            )
    rounds, worst = (tuple(evaluated[len(evaluated) - n :]) for n in counts.values())
    return Reported(rounds, worst)


def sampled_rounds(study: Study) -> list[int]:
    """List the evaluated rounds that no table reports, if only a sample of clients answers then."""
    if study.evaluate_clients is None:
        return []
    shown = reported(study)
    return sorted({*evaluated_rounds(study)} - {*shown.rounds, *shown.worst_of})
