"""Draw accuracy or loss by round, and columns of artefacts, the tables that methods define."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.output_kinds import ArtefactFigure, Personalized, RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.report.plotted_runs import PlottedRun

CURVE_AXES = {
    "accuracy": "Test accuracy (%)",
    "global": "Global accuracy (%)",
    "loss": "Training loss",
}
# the number of letters that have room below a panel
LONG = 36
# width of all bars at one x together, in steps of the axis
BARS_WIDTH = 0.8


class Convergence(RunsFigure):
    """Test accuracy, or another metric, by round, one line per method (PEP-FedPT Fig. 3, 6, 11).

    The metric is the mean test accuracy over participating clients; or the global accuracy on all
    test images, which is that of the server's model or, if a method has none, the mean over the
    participating clients' own models; or the training loss (log scale). A line is the mean over
    seeds, and its band reaches one sample standard deviation to each side. Below the losses, a line
    names each method whose loss cannot be compared with the others'.
    """

    spec = KindSpec(requires=(requirements.global_test,))

    metric: Literal["accuracy", "global", "loss"] = "accuracy"
    """What is shown: `accuracy`, the mean over participating clients; `global`, the accuracy on all
    test images (needs `study.global_test`); or `loss`, the training loss."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            lines(axis, runs, self.curve, log=self.metric == "loss")

        label = CURVE_AXES[self.metric]
        if self.metric == "accuracy":
            label += _clients_shown(series)
        figure = style.by_scenario(series, panel, label)

        # say below the panels whose loss is another
        if self.metric == "loss":
            others = {run.title: run.other_loss for run in series if run.other_loss}
            notes = [f"{title}'s loss is not comparable: {why}" for title, why in others.items()]
            style.write_below(figure, notes)
        return figure

    def curve(self, run: PlottedRun) -> pd.Series:
        """Return the metric of one run by round: percent at the evaluated rounds, or the loss."""
        if self.metric == "loss":
            return metrics.frame(run.rounds).set_index("round")["train_loss"]

        rows = metrics.evaluation(run.evaluation, self.personalized)
        chosen = rows["participating"]
        if self.metric == "global":
            chosen = rows["client_id"] == SERVER_MODEL
        return metrics.by_round(rows[chosen])


def _clients_shown(runs: Sequence[PlottedRun]) -> str:
    """Return a note for the axis if a round evaluates only some participating clients; else ""."""
    # the fewest and the most clients that a run evaluates in a round
    pairs: set[tuple[int, int]] = set()
    for run in runs:
        rows = metrics.frame(run.evaluation)
        counts = rows[rows["participating"]].groupby("round")["client_id"].nunique()
        pairs.add((counts.min(), counts.max()))

    words = [f"{few:,} of {everyone:,}" for few, everyone in sorted(pairs) if few < everyone]
    if not words:
        return ""
    return f"\n({' or '.join(words)} clients; all in reported rounds)"


def lines(
    axis: style.Axes,
    runs: Sequence[PlottedRun],
    curve: Callable[[PlottedRun], pd.Series],
    log: bool,
    x: str = "Round",
) -> None:
    """Draw a line per method: the mean over seeds, with a band of one standard deviation.

    Args:
        axis: the panel.
        runs: the runs that it shows.
        curve: returns a run's numbers on the y axis, indexed by those on the x axis.
        log: whether the y axis is logarithmic.
        x: label of the x axis.
    """
    for method_runs in metrics.grouped(runs, ["method"]).values():
        band = metrics.over_seeds(method_runs, curve).sort_index()
        look = style.of_run(method_runs[0])
        axis.plot(band.index, band["mean"], markevery=max(1, len(band) // 10), **look)

        # the band, which ends above 0 on a logarithmic axis
        low = band["mean"] - band["std"]
        high = band["mean"] + band["std"]
        if log:
            low = low.clip(lower=band["mean"] / 10)
        axis.fill_between(band.index, low, high, color=look["color"], alpha=0.15, linewidth=0)

        if pd.api.types.is_integer_dtype(band.index):
            style.whole_numbers(axis)

    if log:
        style.log_scale(axis)
    axis.set_xlabel(x)


class Lines(ArtefactFigure):
    """Column y of an artefact by its column x, one line per method (PFPT Fig. 4).

    A line is the mean over seeds, and its band reaches one sample standard deviation to each side.
    """

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            lines(axis, runs, lambda run: _values_by_x(self, run), self.log, self.x)

        return style.by_scenario(series, panel, self.y)


class Scatter(ArtefactFigure):
    """Column y of an artefact against its column x, one panel per run; runs of the first seed."""

    spec = KindSpec(first_seed=True)

    colour: str | None = None
    """Column of the artefact by which points are coloured. Default: all points have the colour of
    the method."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per run.

        Points have the method's colour; or, if `colour` is set, the colour of that column's number
        on a scale that all panels share.
        """
        frames = [metrics.artefact(run) for run in series]

        # the scale of all panels
        scale = None
        if self.colour is not None:
            pairs = zip(frames, series, strict=True)
            parts = [column(frame, self.colour, run, numeric=True) for frame, run in pairs]
            scale = style.shades(pd.concat(parts).min(), pd.concat(parts).max())

        # a panel per run
        figure, axes = style.by_run(series)
        for axis, run, frame in zip(axes, series, frames, strict=True):
            points: style.Keywords = {"color": run.style.colour}
            if scale is not None:
                points = {"c": frame[self.colour], "norm": scale.norm}
            x = column(frame, self.x, run)
            y = column(frame, self.y, run)
            axis.scatter(x, y, s=10, marker=run.style.marker, **points)
            axis.set_xlabel(self.x)
            if self.log:
                style.log_scale(axis)

        figure.supylabel(self.y)
        if scale is not None:
            figure.colorbar(scale, ax=axes, label=self.colour, shrink=0.8)
        return figure


class Bars(ArtefactFigure):
    """Column y of an artefact by its column x as bars, the methods side by side.

    Bars are means over seeds, and whiskers reach one sample standard deviation to each side.
    """

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            side_by_side(axis, runs, lambda run: _values_by_x(self, run))
            axis.set_xlabel(self.x)
            if self.log:
                style.log_scale(axis)

        return style.by_scenario(series, panel, self.y)


def side_by_side(
    axis: style.Axes, runs: Sequence[PlottedRun], curve: Callable[[PlottedRun], pd.Series]
) -> None:
    """Draw means over seeds as bars, the methods side by side, with deviations as whiskers."""
    methods = list(metrics.grouped(runs, ["method"]).values())
    bands = [metrics.over_seeds(method_runs, curve) for method_runs in methods]
    values = pd.concat(bands).index.unique()

    # the bars of each method, missing where it has no number
    width = BARS_WIDTH / len(methods)
    for number, (band, (run, *_)) in enumerate(zip(bands, methods, strict=True)):
        part = band.reindex(values)
        left = np.arange(len(values)) - BARS_WIDTH / 2 + (number + 0.5) * width
        axis.bar(
            left, part["mean"], width, yerr=part["std"], label=style.legend_text(run.title),
            color=run.style.colour, hatch=style.HATCHES[run.style.hatch], edgecolor="white",
        )  # fmt: skip

    # long names are slanted
    names = list(map(str, values))
    look = {}
    if len("  ".join(names)) > LONG:
        look = style.SLANTED
    axis.set_xticks(range(len(names)), names, **look)


def _values_by_x(keys: ArtefactFigure, run: PlottedRun) -> pd.Series:
    """Return the mean of column y of a run's artefact by column x."""
    frame = metrics.artefact(run)
    x_values = column(frame, keys.x, run)
    return column(frame, keys.y, run, numeric=True).groupby(x_values, sort=False).mean()


def column(frame: pd.DataFrame, name: str, run: PlottedRun, numeric: bool = False) -> pd.Series:
    """Return a column of a run's artefact, which must hold numbers, or text unless `numeric`.

    Raises a FedLoomError if it holds anything else, or if there is no such column.
    """
    if name not in frame:
        hint = suggestion(name, list(map(str, frame)))
        raise FedLoomError(f"{run.artefact}: no column '{name}'; {hint}")
    text = not numeric and all(isinstance(value, str) for value in frame[name])
    if not text and not pd.api.types.is_numeric_dtype(frame[name]):
        raise FedLoomError(f"{run.artefact}: column '{name}' must hold numbers")
    return frame[name]
