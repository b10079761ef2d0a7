"""Accuracy by method: the main table, and ablations (PEP-FedPT, Tables 1, 4, 5, 7-12)."""

from fedloom.config.output_kinds import AccuracyTable
from fedloom.report import metrics
from fedloom.report.tables.layout import Column
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

TITLES = {
    "participating_mean": "Mean",
    "participating_worst": "Worst",
    "pooled": "Pooled",
    "held_out_mean": "Held-out mean",
    "held_out_worst": "Held-out worst",
    "global": "Global test set",
}


class Accuracy(AccuracyTable):
    """Mean over clients, and the worst client (PEP-FedPT Tables 1, 4, 5, 7-12)."""

    caption = (
        "Mean is the unweighted mean over clients of the accuracy on each client's own test "
        "images, worst the minimum over clients; clients that never train are apart. Global "
        "test set, where it is asked for: all test images, with the server's model, or where "
        "a method has none, with every participating client's own, averaged."
    )

    pooled: bool = False
    """A column more, in which all test images of the participating clients count together, beside
    the mean over clients."""


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return the accuracies of a run in percent, see `metrics.accuracies` and `metrics.pooled`."""
    rows = metrics.evaluation(run.evaluation, job.settings["personalized"])
    numbers = metrics.accuracies(rows, run.reported)
    if job.settings.get("pooled"):
        numbers["pooled"] = metrics.pooled(rows, run.reported)
    return numbers


def column(metric: str) -> Column:
    """Return how one of the accuracies is shown."""
    return Column(TITLES[metric])


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say whose accuracy is shown, and at which rounds."""
    text = f"test accuracy of clients in %, {at(runs)}"
    if job.settings.get("pooled"):
        text += "; pooled: over all test images of the participating clients together"
    if job.global_test:
        text += (
            "; global test set: all test images, with the server's model or, where a method has "
            "none, the participating clients' own, averaged"
        )
    return text + without(job)


def without(job: TableJob) -> str:
    """Say so if methods that personalise clients are shown without it."""
    return "" if job.settings["personalized"] else "; without personalisation before the test"


def at(runs: list[ShownRun]) -> str:
    """Say at which rounds the runs' accuracies were measured; by run where these differ."""
    words: dict[str, dict[str, None]] = {}
    for run in runs:
        name = f"{run.title} on {run.partition}" if _of_methods(runs) else run.partition
        words.setdefault(_rounds(run), {})[name] = None
    if len(words) == 1:
        return next(iter(words))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in words.items())


def _of_methods(runs: list[ShownRun]) -> bool:
    """Return True if methods report other rounds than others on the same partition."""
    return len({(r.partition, r.reported) for r in runs}) > len({r.partition for r in runs})


def _rounds(run: ShownRun) -> str:
    """Say which rounds are reported of a run."""
    rounds, worst = run.reported.rounds, run.reported.worst_of
    names = ", ".join(map(str, rounds))
    text = f"round {names}" if len(rounds) == 1 else f"mean of rounds {names}"
    if worst:
        text += (
            f" (worst: the lowest mean over clients of {len(worst)} evaluations, rounds {worst[0]} "
            f"to {worst[-1]})"
        )
    return text
