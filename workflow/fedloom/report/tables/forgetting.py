"""Tabulate accuracy on a stream, and the forgetting of its earlier parts."""

from typing import ClassVar

from fedloom.common.ids import STREAM_PART_PREFIX
from fedloom.config.output_kinds import AccuracyTable
from fedloom.config.settings import KindSpec
from fedloom.report import metrics
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.accuracy import without_personalisation
from fedloom.report.tables.layout import Column

FORGETTING_COLUMNS = {
    "last": Column("At the end"),
    "average": Column("Over time"),
    "forgetting": Column("Forgetting", higher_is_better=False),
}


class Forgetting(AccuracyTable):
    """Accuracy on the parts of a stream, and forgetting: how far the accuracy on a part has fallen.

    Forgetting is the highest earlier accuracy on a part, minus its final accuracy (Chaudhry et al.,
    "Riemannian Walk for Incremental Learning", ECCV 2018). The accuracy on a part is the mean over
    participating clients that hold images of it. Its mean over the parts that have arrived is shown
    after the last round, and averaged over all evaluated rounds. Forgetting is averaged over all
    parts except the newest.
    """

    spec = KindSpec(partition_key="arrivals")
    column: ClassVar = FORGETTING_COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the `last` and the `average` accuracy in percent, and `forgetting` in points.

        `forgetting` is missing if only one part has arrived.
        """
        rows = metrics.evaluation(run.evaluation, self.personalized)
        rows = rows[rows["participating"]]

        # the parts that have arrived, in the order of their arrival
        columns = [name for name in map(str, rows) if name.startswith(STREAM_PART_PREFIX)]
        names = [name for name in columns if rows[name].notna().any()]
        names.sort(key=lambda name: int(name.removeprefix(STREAM_PART_PREFIX)))

        # the mean accuracy over clients on each part, and the mean over parts
        by_round = 100 * rows.groupby("round")[names].mean()  # [R, parts]
        mean = by_round.mean(axis=1)
        last = by_round.iloc[-1]
        numbers = {"last": float(mean.iloc[-1]), "average": float(mean.mean())}

        # how far each part but the newest has fallen from its highest
        forgotten = (by_round.iloc[:-1].max() - last)[names[:-1]].dropna()
        if len(forgotten):
            numbers["forgetting"] = float(forgotten.mean())
        return numbers

    def describe(self, runs: list[PlottedRun]) -> str:
        return "test accuracy in % on the parts of a stream that have arrived, and forgetting"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return (
            "An accuracy is first the mean over participating clients on each part, and then the "
            "mean over parts: after the last round (at the end), or averaged over all evaluated "
            "rounds (over time).",
            "Forgetting is the number of points by which the final accuracy on a part lies below "
            "its highest earlier one, mean over all parts but the newest.",
            *without_personalisation(self),
        )
