"""Draw accuracy or loss by round: a line per method, a band over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.config.output_kinds import Personalized, RunsFigure
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.study.plot_inputs import ShownRun

AXES = {
    "accuracy": "Test accuracy (%)",
    "global": "Global test accuracy (%)",
    "loss": "Training loss",
}


class Convergence(RunsFigure):
    """A metric by round, one line per method (PEP-FedPT Fig. 3, 6, 11)."""

    requires = (requirements.global_test,)
    caption = (
        "By round, {metric}: test accuracy as the mean over participating clients; global "
        "accuracy on all test images, of the server's model or, where a method has none, of "
        "every participating client's own; or training loss (log scale). Mean over seeds, the "
        "band one sample standard deviation wide each way."
    )

    metric: Literal["accuracy", "global", "loss"] = "accuracy"
    """Test accuracy over participating clients, or on all test images (study.global_test), or
    training loss."""
    personalized: Personalized = True

    def draw(self, series: list[ShownRun]) -> style.Figure:
        """Draw a panel per scenario."""

        def panel(axis: style.Axes, runs: list[ShownRun]) -> None:
            lines(axis, runs, bands(runs, self.curve), log=self.metric == "loss")

        shown = clients_shown(series) if self.metric == "accuracy" else ""
        return style.by_scenario(series, panel, AXES[self.metric] + shown)

    def curve(self, run: ShownRun) -> pd.Series:
        """Return the metric of one run by round: percent at the evaluated rounds, or the loss."""
        if self.metric == "loss":
            return metrics.frame(run.rounds).set_index("round")["train_loss"]
        rows = metrics.evaluation(run.evaluation, self.personalized)
        of_server = rows["client_id"] == SERVER_MODEL
        return metrics.by_round(
            rows[of_server if self.metric == "global" else rows["participating"]]
        )


def clients_shown(runs: Sequence[ShownRun]) -> str:
    """Return what the axis adds if some rounds evaluate only some participating clients, or ""."""
    pairs: set[tuple[int, int]] = set()
    for run in runs:
        rows = metrics.frame(run.evaluation)
        counts = rows[rows["participating"]].groupby("round")["client_id"].nunique()
        pairs.add((counts.min(), counts.max()))
    words = [f"{few:,} of {everyone:,}" for few, everyone in sorted(pairs) if few < everyone]
    return f"\n({' or '.join(words)} clients; all in reported rounds)" if words else ""


def bands(
    series: Sequence[ShownRun], curve: Callable[[ShownRun], pd.Series]
) -> dict[str, pd.DataFrame]:
    """Return `mean` and sample deviation `std` over seeds (NaN of one), by method and round."""
    methods: dict[str, list[pd.Series]] = {}
    for run in series:
        methods.setdefault(run.method, []).append(curve(run))
    return {
        method: pd.concat(curves, axis=1).agg(["mean", "std"], axis=1)
        for method, curves in methods.items()
    }


def lines(
    axis: style.Axes,
    runs: Sequence[ShownRun],
    curves: dict[str, pd.DataFrame],
    log: bool,
    x: str = "Round",
) -> None:
    """Draw a line per method, the band one standard deviation wide each way."""
    shown = {run.method: run for run in runs}
    for method, band in curves.items():
        look = style.of_method(shown[method].style)
        every, title = max(1, len(band) // 10), style.legend_text(shown[method].title)
        axis.plot(band.index, band["mean"], label=title, markevery=every, **look)
        low, high = band["mean"] - band["std"], band["mean"] + band["std"]
        if log:
            low = low.clip(lower=band["mean"] / 10)
        axis.fill_between(band.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
    if log:
        style.log_scale(axis)
    if all(pd.api.types.is_integer_dtype(band.index) for band in curves.values()):
        style.whole_numbers(axis)
    axis.set_xlabel(x)
