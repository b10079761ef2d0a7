"""Accuracy on classes that no client trains on, by the state after the last round."""

from statistics import harmonic_mean
from typing import ClassVar

import pandas as pd

from fedloom.config.output_kinds import RunsTable
from fedloom.hooks.manifest import TEST_SETS
from fedloom.report import metrics, requirements
from fedloom.report.tables.layout import Column
from fedloom.study.plot_inputs import PlottedRun

MEAN = "harmonic_mean"
SETS = {"own": Column("Own"), "base": Column("Base"), "novel": Column("Novel")}


def by_set(run: PlottedRun) -> pd.Series:
    """Return the mean accuracy in percent over participating clients on each set of test images."""
    rows = metrics.artefact(run)
    return metrics.percent(rows).groupby(rows["test_set"], sort=False).mean()


class BaseToNovel(RunsTable):
    """Mean over clients on their own images, on all of base classes and on those of classes that no
    client trains on, and the harmonic mean of the three (FedTPG, FedPGP, FedMGP).

    On base and novel images a client's model predicts among base and among novel classes alone.
    """

    requires = (requirements.novel_classes,)
    artefact_name = TEST_SETS
    column: ClassVar = (SETS | {MEAN: Column("Harmonic mean")}).__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the accuracies of a run in percent, and their harmonic mean."""
        means = by_set(run)
        numbers = {name: float(means[name]) for name in SETS}
        return numbers | {MEAN: harmonic_mean(numbers.values())}

    def describe(self, runs: list[PlottedRun]) -> str:
        """Say which images the numbers are of."""
        return (
            "test accuracy in % after the last round, mean over participating clients: on their "
            "own images and on those of all base classes, among these classes, and on those of "
            "classes that no client trains on, among those; harmonic mean of the three"
        )
