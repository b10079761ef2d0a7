"""Measure how well groups of images agree with superclasses and with centralised k-means."""

from typing import ClassVar

import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import KeyPath
from fedloom.config.output_kinds import RunsTable, Superclasses, with_superclasses
from fedloom.config.settings import KindSpec, OutputEntry, Settings
from fedloom.report.metrics import artefact
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.layout import Column

CLUSTERING_COLUMNS = {
    "information": Column("Adjusted mutual information"),
    "accuracy": Column("Clustering accuracy", higher_is_better=None),
    "congruence": Column("Congruence with k-means"),
    "largest": Column("Largest group", higher_is_better=None),
}


class Clustering(RunsTable):
    """Groups of images against superclasses and against centralised k-means (SGPT Table 4, D.2).

    Adjusted mutual information is 0 if the groups are independent of the superclasses, and 100 if
    both are the same. Congruence can exceed 100 %.
    """

    spec = KindSpec(artefact="groups")
    column: ClassVar = CLUSTERING_COLUMNS.__getitem__

    superclasses: Superclasses

    def complete(self, settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
        return with_superclasses(self.superclasses, output, where)

    def measure(self, run: PlottedRun, superclass_of: dict[str, str]) -> dict[str, float]:
        """Measure in percent how well a run's groups agree with superclasses and with k-means.

        The paper's accuracy can be high even if groups say nothing about superclasses. For example,
        if most images have one superclass, a single group for all images has a high accuracy.
        """
        # imported here: both imports are slow, and plans do not need them
        import scipy
        from sklearn.metrics import adjusted_mutual_info_score

        images = artefact(run)
        coarse = find_superclasses(images["class"], superclass_of, self.superclasses)
        test = images["test"]
        groups = images["group"][test]
        train = images[~test]

        # match groups with superclasses one to one, so that most images agree (Hungarian method)
        counts = pd.crosstab(groups, coarse[test]).to_numpy()
        matched = scipy.optimize.linear_sum_assignment(counts, maximize=True)

        return {
            "information": 100 * adjusted_mutual_info_score(coarse[test], groups),
            "accuracy": 100 * counts[matched].sum() / len(groups),
            "congruence": congruence(train["group"], train["cluster"], train["class"]),
            "largest": 100 * groups.value_counts(normalize=True).max(),
        }

    def describe(self, runs: list[PlottedRun]) -> str:
        return "agreement of groups of images with superclasses and with centralised k-means in %"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return (
            "Groups are those after the last round.",
            "Mutual information is that of test images' groups with superclasses, adjusted for "
            "chance.",
            "Clustering accuracy is the share of test images in the group that is matched, one to "
            "one, with their superclass.",
            "Congruence is the overlap of training images' groups with clusters of centralised "
            "k-means, divided by the quality of these clusters.",
            "The last column is the share of test images in the largest group.",
        )


def find_superclasses(classes: pd.Series, superclass_of: dict, file: str | None) -> pd.Series:
    """Return the superclass of every class; raise a FedLoomError if the file lacks a class."""
    coarse = classes.map(superclass_of)
    if coarse.isna().any():
        raise FedLoomError(
            f"{file}: no superclass of the class '{min(classes[coarse.isna()])}'; add it"
        )
    return coarse


def congruence(groups: pd.Series, clusters: pd.Series, classes: pd.Series) -> float:
    """Return the overlap of groups with k-means clusters, divided by the quality of k-means, in %.

    - Overlap: for each group, the number of its images in the cluster that has most of them,
      summed over groups.
    - Quality: for each class, the number of its images in the cluster that has most of them,
      summed over classes.

    The paper does not say whether groups or clusters are the rows of the contingency table. With
    clusters as rows, a single group for all images would be perfect; so groups are the rows here.
    `groups`, `clusters` and `classes` have one value per image.
    """
    overlap = pd.crosstab(groups, clusters).max(axis=1).sum()
    together = pd.crosstab(classes, clusters).max(axis=1).sum()
    return 100 * overlap / together
