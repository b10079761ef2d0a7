"""Accuracy by domain (PEP-FedPT, Table 2, where every domain is one client)."""

import pandas as pd

from fedloom.config.output_kinds import AccuracyTable
from fedloom.config.rounds import Reported
from fedloom.report.metrics import evaluation, percent, pooled, worst
from fedloom.report.tables.accuracy import at, without
from fedloom.report.tables.layout import Column
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

TITLES = {
    "participating_mean": "Mean",
    "participating_worst": "Worst",
    "pooled": "Pooled",
}
PREFIX = "domain_"


class Domains(AccuracyTable):
    """Mean over each domain's clients, over all, and pooled (PEP-FedPT Table 2)."""

    caption = (
        "Participating clients: mean over the clients of each domain, mean and worst over all "
        "clients, and all their test images pooled."
    )


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return the accuracies of a run by domain and over all, see `by_domain`."""
    return by_domain(evaluation(run.evaluation, job.settings["personalized"]), run.reported)


def by_domain(evaluated: pd.DataFrame, reported: Reported) -> dict[str, float]:
    """Compute accuracies in percent of the participating clients, means over the reported rounds.

    Returns:
        `domain_<name>`, the unweighted mean over the clients of a domain (a client whose images are
        of several domains has the domain "a+b"); `participating_mean` and `participating_worst`
        over all clients (see `metrics.worst`); `pooled`, for which all their test images count
        together.
    """
    group = evaluated[evaluated["participating"]]
    rows = group[group["round"].isin(reported.rounds)]
    of_client = percent(rows)
    per_domain = of_client.groupby([rows["domain"], rows["round"]]).mean().groupby("domain").mean()
    return {f"{PREFIX}{name}": float(value) for name, value in per_domain.items()} | {
        "participating_mean": float(of_client.groupby(rows["round"]).mean().mean()),
        "participating_worst": worst(group, reported),
        "pooled": pooled(group, reported),
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
        f"and worst over all, and over all their test images pooled; {at(runs)}{without(job)}"
    )
