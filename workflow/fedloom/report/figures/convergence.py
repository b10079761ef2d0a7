"""Draw accuracy or loss by round: a line per method, a band over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.config.output_kinds import Personalized, RunsFigure
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.study.plot_inputs import PlottedRun

AXES = {
    "accuracy": "Test accuracy (%)",
    "global": "Global test accuracy (%)",
    "loss": "Training loss",
}


class Convergence(RunsFigure):
    """A metric by round, one line per method (PEP-FedPT Fig. 3, 6, 11).

    Test accuracy as the mean over participating clients; global accuracy on all test images, of the
    server's model or, where a method has none, of every participating client's own; or training
    loss (log scale). Mean over seeds, the band one sample standard deviation wide each way.
    """

    requires = (requirements.global_test,)

    metric: Literal["accuracy", "global", "loss"] = "accuracy"
    """Test accuracy over participating clients, or on all test images (study.global_test), or
    training loss."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario."""

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            lines(axis, runs, self.curve, log=self.metric == "loss")

        shown = clients_shown(series) if self.metric == "accuracy" else ""
        return style.by_scenario(series, panel, AXES[self.metric] + shown)

    def curve(self, run: PlottedRun) -> pd.Series:
        """Return the metric of one run by round: percent at the evaluated rounds, or the loss."""
        if self.metric == "loss":
            return metrics.frame(run.rounds).set_index("round")["train_loss"]
        rows = metrics.evaluation(run.evaluation, self.personalized)
        of_server = rows["client_id"] == SERVER_MODEL
        return metrics.by_round(
            rows[of_server if self.metric == "global" else rows["participating"]]
        )


def clients_shown(runs: Sequence[PlottedRun]) -> str:
    """Return what the axis adds if some rounds evaluate only some participating clients, or ""."""
    pairs: set[tuple[int, int]] = set()
    for run in runs:
        rows = metrics.frame(run.evaluation)
        counts = rows[rows["participating"]].groupby("round")["client_id"].nunique()
        pairs.add((counts.min(), counts.max()))
    words = [f"{few:,} of {everyone:,}" for few, everyone in sorted(pairs) if few < everyone]
    return f"\n({' or '.join(words)} clients; all in reported rounds)" if words else ""


def lines(
    axis: style.Axes,
    runs: Sequence[PlottedRun],
    curve: Callable[[PlottedRun], pd.Series],
    log: bool,
    x: str = "Round",
) -> None:
    """Draw a line per method over seeds, the band one standard deviation wide each way."""
    bands = []
    for of_method in metrics.grouped(runs, ["method"]).values():
        bands.append(band := metrics.over_seeds(of_method, curve).sort_index())
        look = style.of_run(of_method[0])
        axis.plot(band.index, band["mean"], markevery=max(1, len(band) // 10), **look)
        low, high = band["mean"] - band["std"], band["mean"] + band["std"]
        if log:
            low = low.clip(lower=band["mean"] / 10)
        axis.fill_between(band.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
    if log:
        style.log_scale(axis)
    if all(pd.api.types.is_integer_dtype(band.index) for band in bands):
        style.whole_numbers(axis)
    axis.set_xlabel(x)
