"""A table of accuracy under label shift: test labels that are unlike those of training."""

from typing import ClassVar

from fedloom.report.output_toolbox import Column, KindSpec, PlottedRun, RunsTable, metrics

LABELS = {"own": "Own labels", "balanced": "Balanced"}
SHARES = {"none": "as they are", "own": "own shares", "estimated": "estimated shares"}
COLUMNS = {
    f"{labels}_{shares}": Column(f"{title}, {how}")
    for labels, title in LABELS.items()
    for shares, how in SHARES.items()
}


class LabelShift(RunsTable):
    """Accuracy with no, own and estimated class shares, on own and on balanced test images.

    Runs have the wrapper `class_priors`, whose artefact has the answers.
    """

    spec = KindSpec(artefact="label_shift")
    column: ClassVar = COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the mean accuracy of a run's participating clients by column, in %."""
        rows = metrics.artefact(run)
        rows = rows[rows["participating"]]
        means = rows.groupby(["labels", "shares"])["accuracy"].mean()
        return {
            f"{labels}_{shares}": 100 * float(means[labels, shares])
            for labels in LABELS
            for shares in SHARES
        }

    def describe(self, runs: list[PlottedRun]) -> str:
        """Return what the caption says: whose accuracy is shown, and on which images."""
        return "test accuracy of participating clients in % on their own and on balanced images"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        """Return sentences on the images and on the shares that are added to the logits."""
        return (
            "Accuracies are means over clients after the last round, before they personalise.",
            "Of the balanced test images, equally many are of each class.",
            "Logits are the method's as they are, with the log of the shares of the client's "
            "training classes added, or with that of shares estimated from the unlabelled test "
            "images.",
        )
