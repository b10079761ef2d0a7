"""Clients that train beside clients that never do (PEP-FedPT, Tables 3 and 13)."""

from fedloom.config import requirements
from fedloom.config.output_kinds import AccuracyTable
from fedloom.report.tables import accuracy
from fedloom.report.tables.layout import Column
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

TITLES = {"participating_mean": "Participating", "held_out_mean": "Held-out"}


class HeldOut(AccuracyTable):
    """Participating and held-out clients side by side (PEP-FedPT Tables 3, 13)."""

    needs = (requirements.held_out,)
    caption = "Mean accuracy of the clients that take part in training, and of those that never do."


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return the mean accuracy of both groups in percent; without held-out clients, of one."""
    numbers = accuracy.measure(run, job)
    return {name: numbers[name] for name in TITLES if name in numbers}


def column(metric: str) -> Column:
    """Return how a group's accuracy is shown."""
    return Column(TITLES[metric])


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say which two groups of clients are compared, and at which rounds."""
    return (
        "mean test accuracy in % of clients that take part in training and of clients held out, "
        f"{accuracy.at(runs)}"
    )
