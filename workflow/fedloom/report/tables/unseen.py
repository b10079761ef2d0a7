"""Accuracy on classes and datasets that no client trains on, by the state after the last round."""

from statistics import fmean, harmonic_mean
from typing import ClassVar

from fedloom.common.ids import BASE, NOVEL, OTHER, OWN
from fedloom.config.output_kinds import RunsTable
from fedloom.hooks.manifest import TEST_SETS
from fedloom.report import metrics, requirements
from fedloom.report.tables.layout import Column
from fedloom.study.plot_inputs import PlottedRun

MEAN = "harmonic_mean"
SETS = {OWN: Column("Own"), BASE: Column("Base"), NOVEL: Column("Novel")}


def by_set(run: PlottedRun) -> dict[str, float]:
    """Return the mean accuracy in percent over participating clients on each set of test images."""
    rows = metrics.artefact(run)
    means = metrics.percent(rows).groupby(rows["test_set"], sort=False).mean()
    return {str(name): float(mean) for name, mean in means.items()}


class BaseToNovel(RunsTable):
    """Mean over clients on their own images, on all of base classes and on those of classes that no
    client trains on, and the harmonic mean of the three (FedTPG, FedPGP, FedMGP).

    On base and novel images a client's model predicts among base and among novel classes alone.
    """

    requires = (requirements.partition_key("novel_classes"),)
    artefact_name = TEST_SETS
    column: ClassVar = (SETS | {MEAN: Column("Harmonic mean")}).__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracies of a run in percent, and their harmonic mean."""
        means = by_set(run)
        numbers = {name: means[name] for name in SETS}
        return numbers | {MEAN: harmonic_mean(numbers.values())}

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which images the numbers are of."""
        return (
            "test accuracy in % after the last round, mean over participating clients: on their "
            "own images and on those of all base classes, among these classes, and on those of "
            "classes that no client trains on, among those; harmonic mean of the three"
        )


class CrossDataset(RunsTable):
    """Mean over clients on all test images of the dataset that they train on, on those of each that
    a partition transfers to, and the mean over the latter (CoCoOp Table 2, FedTPG Table 2)."""

    requires = (requirements.partition_key("transfer_to"),)
    artefact_name = TEST_SETS

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracies of a run in percent."""
        means = by_set(run)
        numbers = {name: mean for name, mean in means.items() if name.startswith(OTHER)}
        return {BASE: means[BASE]} | numbers | {"mean": fmean(numbers.values())}

    def column(self, metric: str) -> Column:
        """Return how an accuracy is shown; a dataset's heading is its label."""
        own = {BASE: Column("Source"), "mean": Column("Mean of others")}
        return own.get(metric) or Column(metric.removeprefix(OTHER))

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which images the numbers are of."""
        return (
            "accuracy in % on all test images after the last round, mean over participating "
            "clients: of the dataset that they train on, and of others, among their classes"
        )
