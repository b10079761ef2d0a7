"""How equal the accuracies of clients are.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Table 1.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from fedloom.report.output_toolbox import (
    AccuracyTable,
    Column,
    PlottedRun,
    describe_rounds,
    metrics,
)

COLUMNS = {
    "worst": Column("Worst"),
    "median": Column("Median"),
    "best": Column("Best"),
    "deviation": Column("Deviation", higher_is_better=False),
}


class Spread(AccuracyTable):
    """The accuracies of the worst, the median and the best clients, and the standard deviation.

    A client's accuracy is its mean over the reported rounds.
    """

    share: Annotated[float, Field(gt=0, le=50)] = 10.0
    """Percentage of the clients that count as the worst, and as the best."""
    column: ClassVar = COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the four numbers of a run by column, in %, over its participating clients."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        rows = rows[rows["participating"] & rows["round"].isin(run.reported.rounds)]
        sorted_ = metrics.percent(rows).groupby(rows["client_id"]).mean().sort_values()
        few = max(1, round(self.share / 100 * len(sorted_)))
        return {
            "worst": float(sorted_.head(few).mean()),
            "median": float(sorted_.median()),
            "best": float(sorted_.tail(few).mean()),
            "deviation": float(sorted_.std(ddof=0)),
        }

    def describe(self, runs: list[PlottedRun]) -> str:
        """Return what the caption says: whose accuracy is shown, and over what."""
        return (
            f"test accuracy in % of the worst and the best {self.share:g} % of participating "
            "clients, median, and standard deviation over clients"
        )

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        """Return a sentence on the rounds that count; it is folded away below the table."""
        return (f"Accuracies are from {describe_rounds(runs)}.",)
