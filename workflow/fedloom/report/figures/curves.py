"""Draw numbers by round, or by another column: a line per method, a band over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from fedloom.report.figures import style
from fedloom.study.plot_inputs import ShownRun


def bands(
    series: Sequence[ShownRun], metric: str, of: Callable[[ShownRun, str], pd.Series]
) -> dict[str, pd.DataFrame]:
    """Return mean and sample standard deviation (NaN of one seed) over seeds, by method and round.

    Args:
        of: returns a run's metric by round.
    """
    methods: dict[str, list[pd.Series]] = {}
    for run in series:
        methods.setdefault(run.method, []).append(of(run, metric))
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
        look = style.of_method(shown[method].look)
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
