"""Accuracy on domains that no client trains on, a column for each that a partition leaves out."""

from dataclasses import replace
from statistics import fmean

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.output_kinds import Methods, Personalized, TableKind
from fedloom.config.settings import Output, Settings
from fedloom.report import metrics
from fedloom.report.tables import notes, spread
from fedloom.report.tables.accuracy import at
from fedloom.report.tables.layout import Built, Column, texts
from fedloom.report.tables.summary import summarise
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import PlottedRun

MEAN = "mean"


def others_left_out(settings: Settings, output: Output, where: str) -> None:
    """Require that every partition that the output shows leaves out other domains."""
    labels = dict.fromkeys(scenario.partition for scenario in output.scenarios)
    names = [settings.partitions[label].settings.get("held_out_domains") for label in labels]
    if None in names or any(each in names[:k] for k, each in enumerate(names)):
        raise FedLoomError(
            f"{where}: each of the partitions {', '.join(labels)} must have its own "
            "held_out_domains; set them, or name other scenarios"
        )


class LeaveOneDomainOut(TableKind):
    """Mean accuracy on each domain over the clients of a partition that leaves it out of training,
    and the mean over domains."""

    requires = (others_left_out,)

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
        before = "" if self.personalized else "; without personalisation before the test"
        text = (
            "test accuracy in % of the clients of a domain that no client trains on, a column per "
            f"domain left out, {at(runs)}{before}{spread(int(frame['seeds'].min()))}"
        )
        if job.tuned is not None:
            text += f" {notes.tuning(runs, job.tuned)}"
        shown = texts(frame, lambda name: Column("Mean" if name == MEAN else name))
        strangers = {run.method for run in runs if run.sees_held_out}
        marks = [[notes.STRANGERS] * (name in strangers) for name in frame["method"]]
        return Built(frame, notes.with_signs(shown, marks), text)

    def _measure(self, run: PlottedRun) -> tuple[str, float]:
        """Return the domains that a run's partition leaves out, and their clients' accuracy."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        held_out = rows[~rows["participating"] & (rows["client_id"] != SERVER_MODEL)]
        name = "+".join(held_out["domain"].unique())
        return name, metrics.accuracies(held_out, run.reported)["held_out_mean"]
