"""Accuracy by domain (PEP-FedPT, Table 2, where every domain is one client)."""

from collections.abc import Sequence

import pandas as pd

from fedloom.plan.jobs import TableJob
from fedloom.plan.shown import ShownRun
from fedloom.report.metrics import evaluation
from fedloom.report.tables.accuracy import at, without
from fedloom.report.tables.layout import Column

TITLES = {
    "participating_mean": "Mean",
    "participating_worst": "Worst",
    "pooled": "Pooled",
}
PREFIX = "domain_"


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return the accuracies of a run by domain and over all, see `by_domain`."""
    return by_domain(evaluation(run.evaluation, job.settings["personalized"]), job.rounds)


def by_domain(evaluated: pd.DataFrame, rounds: Sequence[int]) -> dict[str, float]:
    """Compute accuracies in percent of the participating clients, each the mean over `rounds`.

    Returns:
        `domain_<name>`, the unweighted mean over the clients of a domain (a client whose images are
        of several domains has the domain "a+b"); `participating_mean` and `participating_worst`
        over all clients; `pooled`, for which all their test images count together.
    """
    rows = evaluated[evaluated["round"].isin(rounds) & evaluated["participating"]]
    percent = 100 * rows["num_correct"] / rows["num_test"]
    per_domain = percent.groupby([rows["domain"], rows["round"]]).mean().groupby("domain").mean()
    per_round = percent.groupby(rows["round"])
    total = rows.groupby("round")[["num_correct", "num_test"]].sum()
    return {f"{PREFIX}{name}": float(value) for name, value in per_domain.items()} | {
        "participating_mean": float(per_round.mean().mean()),
        "participating_worst": float(per_round.min().mean()),
        "pooled": float((100 * total["num_correct"] / total["num_test"]).mean()),
    }


def column(metric: str) -> Column:
    """Return how an accuracy is shown; a domain's heading is its name."""
    if metric.startswith(PREFIX):
        return Column(metric.removeprefix(PREFIX) or "(none)")
    return Column(TITLES[metric])


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say over which clients the accuracies are, and at which rounds."""
    return (
        "test accuracy in % of the participating clients: mean over each domain's clients, mean "
        f"and worst over all, and over all their test images pooled; {at(job.rounds)}{without(job)}"
    )
