"""Draw columns of any table that methods give, as lines, points or bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.config.output_kinds import ArtefactFigure
from fedloom.report.figures import style
from fedloom.report.figures.convergence import lines
from fedloom.report.metrics import artefact, grouped, over_seeds
from fedloom.study.plot_inputs import PlottedRun

LONG = 36  # letters that have room below a panel
WIDTH = 0.8  # of the bars of one x together, in steps of the axis


class Lines(ArtefactFigure):
    """Any artefact's column y by its column x, one line per method (PFPT Fig. 4).

    Mean over seeds, the band one sample standard deviation wide each way.
    """

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario; rows of one x are averaged within a run."""

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            lines(axis, runs, lambda run: by_x(self, run), self.log, self.x)

        return style.by_scenario(series, panel, self.y)


class Scatter(ArtefactFigure):
    """Any artefact's column y against its column x, a panel per run of the first seed."""

    first_seed = True

    colour: str | None = None
    """A column of the artefact that colours the points."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per run, in the method's colour, or by one scale for a column's numbers."""
        frames, scale = [artefact(run) for run in series], None
        if self.colour is not None:
            pairs = zip(frames, series, strict=True)
            parts = [column(frame, self.colour, run, numeric=True) for frame, run in pairs]
            scale = style.shades(pd.concat(parts).min(), pd.concat(parts).max())
        figure, axes = style.by_run(series)
        for axis, run, frame in zip(axes, series, frames, strict=True):
            points: dict[str, Any] = {"color": run.style.colour}
            if scale is not None:
                points = {"c": frame[self.colour], "norm": scale.norm}
            x, y = column(frame, self.x, run), column(frame, self.y, run)
            axis.scatter(x, y, s=10, marker=run.style.marker, **points)
            axis.set_xlabel(self.x)
            if self.log:
                style.log_scale(axis)
        style.left_label(axes, self.y)
        if scale is not None:
            figure.colorbar(scale, ax=axes, label=self.colour, shrink=0.8)
        return figure


class Bars(ArtefactFigure):
    """Any artefact's column y by its column x as bars, the methods side by side.

    Mean over seeds, whiskers one sample standard deviation each way.
    """

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario."""

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            side_by_side(axis, runs, lambda run: by_x(self, run))
            axis.set_xlabel(self.x)
            if self.log:
                style.log_scale(axis)

        return style.by_scenario(series, panel, self.y)


def side_by_side(
    axis: style.Axes, runs: Sequence[PlottedRun], curve: Callable[[PlottedRun], pd.Series]
) -> pd.DataFrame:
    """Draw means over seeds as bars, the methods side by side, with deviations as whiskers.

    Returns:
        `mean` and `std` of every bar.
    """
    methods = list(grouped(runs, ["method"]).values())
    bands = [over_seeds(of_method, curve) for of_method in methods]
    bars = pd.concat(bands)
    values, width = bars.index.unique(), WIDTH / len(methods)
    for number, (band, (run, *_)) in enumerate(zip(bands, methods, strict=True)):
        part = band.reindex(values)
        left = np.arange(len(values)) - WIDTH / 2 + (number + 0.5) * width
        axis.bar(
            left, part["mean"], width, yerr=part["std"], label=style.legend_text(run.title),
            color=run.style.colour, hatch=style.HATCHES[run.style.line], edgecolor="white",
            capsize=2,
        )  # fmt: skip
    names = list(map(str, values))
    look = style.SLANTED if len("  ".join(names)) > LONG else {}
    axis.set_xticks(range(len(names)), names, **look)
    return bars


def by_x(keys: ArtefactFigure, run: PlottedRun) -> pd.Series:
    """Return the mean of column y of a run's artefact by column x."""
    frame = artefact(run)
    of_x = column(frame, keys.x, run)
    return column(frame, keys.y, run, numeric=True).groupby(of_x, sort=False).mean()


def column(frame: pd.DataFrame, name: str, run: PlottedRun, numeric: bool = False) -> pd.Series:
    """Return a column of a run's artefact.

    Raises:
        FedLoomError: the artefact has no such column, the column holds lists, or it is to be
            `numeric` and does not hold numbers.
    """
    if name not in frame:
        hint = suggestion(name, list(map(str, frame)))
        raise FedLoomError(f"{run.artefact}: no column '{name}'; {hint}")
    values, where = frame[name], f"{run.artefact}: column '{name}'"
    if any(hasattr(value, "__len__") and not isinstance(value, str) for value in values):
        raise FedLoomError(f"{where} holds lists, which have no place on an axis")
    if numeric and not pd.api.types.is_numeric_dtype(values):
        raise FedLoomError(f"{where} must hold numbers, and holds text")
    return values
