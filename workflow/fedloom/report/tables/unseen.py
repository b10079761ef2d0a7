"""Accuracy on classes, datasets and domains that no client trains on."""

from statistics import fmean, harmonic_mean
from typing import ClassVar

from fedloom.common.ids import BASE, NOVEL, OTHER, OWN
from fedloom.config.output_kinds import AccuracyTable, RunsTable
from fedloom.hooks.manifest import TEST_SETS
from fedloom.report import metrics
from fedloom.report.tables.accuracy import DOMAIN, Domains, at, without
from fedloom.report.tables.layout import Column
from fedloom.study.plot_inputs import PlottedRun


def heading(self: RunsTable, metric: str) -> Column:
    """Return how an accuracy is shown; a dataset's heading is its label."""
    label = metric.removeprefix(OTHER)
    return Column(metric.replace("_", " ").capitalize() if label == metric else label)


class BaseToNovel(RunsTable):
    """Mean over clients on their own images, on all of base classes and on those of classes that no
    client trains on (FedTPG, FedPGP, FedMGP).

    On base and novel images a client's model predicts among base and among novel classes alone.
    Beside the harmonic mean of the three stands FedMGP's combined metric: half the first, and half
    the harmonic mean of the others. Both are of a run's means over clients.
    """

    partition_key = "novel_classes"
    artefact_name = TEST_SETS
    column: ClassVar = heading

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracies of a run in percent, and what they make together."""
        means = metrics.by_test_set(run)
        numbers = {name: means[name] for name in (OWN, BASE, NOVEL)}
        others = harmonic_mean((numbers[BASE], numbers[NOVEL]))
        together = {"harmonic_mean": harmonic_mean(numbers.values())}
        return numbers | together | {"combined": fmean((numbers[OWN], others))}

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which images the numbers are of."""
        return (
            "test accuracy in % after the last round, mean over participating clients: on their "
            "own images and on those of all base classes, among these classes, and on those of "
            "classes that no client trains on, among those; harmonic mean of the three; combined: "
            "mean of own and the harmonic mean of base and novel"
        )


class CrossDataset(RunsTable):
    """Mean over clients on all test images of the classes that they train on (source), on those of
    each dataset that a partition transfers to, and the mean over the latter (FedTPG)."""

    partition_key = "transfer_to"
    artefact_name = TEST_SETS
    column: ClassVar = heading

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracies of a run in percent."""
        means = metrics.by_test_set(run)
        numbers = {name: mean for name, mean in means.items() if name.startswith(OTHER)}
        return {"source": means[BASE]} | numbers | {"mean_of_others": fmean(numbers.values())}

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which images the numbers are of."""
        return (
            "accuracy in % on all test images after the last round, mean over participating "
            "clients: of the classes that they train on, and of other datasets, among their classes"
        )


class LeaveOneDomainOut(AccuracyTable):
    """Mean accuracy on each domain over the clients of a partition that leaves it out of training,
    and the mean over partitions."""

    partition_key = "held_out_domains"
    across_partitions = True
    column: ClassVar = Domains.column

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracy of the clients held out in percent, by domain, and for the mean."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        mean = metrics.accuracies(rows, run.reported)["held_out_mean"]
        held_out = rows[~rows["participating"] & (rows["domain"] != "")]
        return {DOMAIN + "+".join(held_out["domain"].unique()): mean, "held_out_mean": mean}

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which clients the numbers are of, and at which rounds."""
        return (
            "test accuracy in % of the clients of a domain that no client trains on, a column per "
            f"domain left out, {at(runs)}{without(self)}"
        )
