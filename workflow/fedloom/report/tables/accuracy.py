"""Accuracy by method: the main table, and ablations (PEP-FedPT, Tables 1, 4, 5, 7-12)."""

from collections.abc import Sequence

from fedloom.plan.jobs import TableJob
from fedloom.plan.shown import ShownRun
from fedloom.report.metrics import accuracies, evaluation
from fedloom.report.tables.layout import Column

TITLES = {
    "participating_mean": "Mean",
    "participating_worst": "Worst",
    "held_out_mean": "Held-out mean",
    "held_out_worst": "Held-out worst",
    "global": "Global test set",
}


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return the accuracies of a run in percent, see `metrics.accuracies`."""
    rows = evaluation(run.evaluation, job.settings["personalized"])
    return accuracies(rows, job.rounds)


def column(metric: str) -> Column:
    """Return how one of the accuracies is shown."""
    return Column(TITLES[metric])


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say whose accuracy is shown, and at which rounds."""
    text = f"test accuracy of clients in %, {at(job.rounds)}"
    if job.global_test:
        text += (
            "; global test set: all test images, with the server's model or, where a method has "
            "none, the participating clients' own, averaged"
        )
    return text + without(job)


def without(job: TableJob) -> str:
    """Say so if methods that personalise clients are shown without it."""
    return "" if job.settings["personalized"] else "; without personalisation before the test"


def at(rounds: Sequence[int]) -> str:
    """Say at which rounds something was measured."""
    names = ", ".join(map(str, rounds))
    return f"round {names}" if len(rounds) == 1 else f"mean of rounds {names}"
