"""Accuracy on domains that no client trains on, a column for each that a partition leaves out."""

from dataclasses import replace
from statistics import fmean

import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.config.output_kinds import Methods, Personalized, TableKind
from fedloom.config.settings import Output, Settings
from fedloom.report import metrics
from fedloom.report.tables import notes, spread
from fedloom.report.tables.accuracy import at, without
from fedloom.report.tables.layout import Built, Column, texts
from fedloom.report.tables.summary import summarise
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import PlottedRun

MEAN = "mean"


def one_left_out(settings: Settings, output: Output, where: str) -> None:
    """Require that every partition that the output shows leaves out another domain."""
    labels: dict[str, str] = {}
    for label in dict.fromkeys(scenario.partition for scenario in output.scenarios):
        names = settings.partitions[label].settings.get("held_out_domains", [])
        if len(names) != 1:
            raise FedLoomError(
                f"{where}: partitions.{label}.held_out_domains must be one domain, got {names}; "
                "set it, or name other scenarios"
            )
        if names[0] in labels:
            line = f"{where}: partitions.{labels[names[0]]} and partitions.{label} both leave out "
            raise FedLoomError(f"{line}'{names[0]}'; name the scenarios of one of them")
        labels[names[0]] = label


class LeaveOneDomainOut(TableKind):
    """Mean accuracy on each domain over the clients of a partition that leaves it out of training,
    and the mean over domains."""

    requires = (one_left_out,)

    methods: Methods = None
    personalized: Personalized = True

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a row per method: a number is of the run on the partition that leaves it out."""
        label = ", ".join(dict.fromkeys(run.partition for run in runs))
        rows, found = list[PlottedRun](), list[dict[str, float]]()
        for group in metrics.grouped(runs, ("dataset", "backbone", "method", "seed")).values():
            numbers = dict(map(self._measure, group))
            rows.append(replace(group[0], partition=label))
            found.append(numbers | {MEAN: fmean(numbers.values())})
        frame = summarise(rows, found)
        text = (
            "test accuracy in % of the clients of a domain that no client trains on, a column per "
            f"domain left out, {at(runs)}{without(self)}{spread(int(frame['seeds'].min()))}"
        )
        if job.tuned is not None:
            text += f" {notes.tuning(runs, job.tuned)}"
        return Built(frame, texts(frame, self.column), text)

    def _measure(self, run: PlottedRun) -> tuple[str, float]:
        """Return the domain that a run's partition leaves out, and its clients' mean accuracy."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        numbers = metrics.accuracies(rows, run.reported)
        return _left_out(rows), numbers["held_out_mean"]

    @staticmethod
    def column(metric: str) -> Column:
        """Return how an accuracy is shown; a domain's heading is its name."""
        return Column("Mean" if metric == MEAN else metric)


def _left_out(rows: pd.DataFrame) -> str:
    """Return the domain of the clients that never train."""
    (domain,) = rows.loc[~rows["participating"] & (rows["client_id"] >= 0), "domain"].unique()
    return str(domain)
