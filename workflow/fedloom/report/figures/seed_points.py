"""Draw numbers of every run: a point per seed, and the mean of a method with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from pydantic import Field

from fedloom.common.schema import Several
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.report import requirements, verdicts
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import Measure, measures_by_title
from fedloom.report.metrics import grouped
from fedloom.report.plotted_runs import PlottedRun

# inches of a row, of the space above and below the rows of a panel, and of a panel's width
ROW = 0.28
MARGIN = 0.75
WIDTH = 4.2
# how far the points of a row are spread around its middle, in rows
SPREAD = 0.22


class SeedPoints(RunsFigure):
    """Accuracies of every run: a row per method, a point per seed.

    The mean over seeds is a large marker, and a line shows Student's 95 % interval of the mean. The
    panels are scenarios, or a row of them for each scenario if there are several metrics.
    """

    spec = KindSpec(requires=(requirements.global_test, requirements.held_out_metrics))

    metrics: Several[AccuracyMetric] = Field(["participating_mean"])
    """Accuracies to show, each in its own panel: the mean or the worst over participating or
    held-out clients, or `global`, on all test images (needs `study.global_test`)."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel for each scenario and metric."""
        return draw_points(series, measures_by_title(self.metrics, self.personalized))


def draw_points(series: Sequence[PlottedRun], measures: Mapping[str, Measure]) -> style.Figure:
    """Draw panels with a row per method, in the order of the runs.

    With several measures, each scenario has a row of panels, and each measure a column. With one
    measure, each scenario has a panel, and all panels share their axis.

    Args:
        series: the runs, each with a style.
        measures: by the title of its axis, a function that returns the number of a run.
    """
    scenarios = list(grouped(series).values())
    methods = [list(grouped(runs, ["method"])) for runs in scenarios]
    most_rows = max(len(names) for names in methods)
    size = (WIDTH, MARGIN + ROW * most_rows)

    # the panels, and the titles of their axes
    if len(measures) == 1:
        figure, axes = style.panels(len(scenarios), size=size, sharex=True)
        (title,) = measures
        figure.supxlabel(title)
    else:
        rows = len(scenarios)
        columns = len(measures)
        figure, table = style.grid(rows, columns, size=size, sharex="col")
        axes = list(table.flat)
        for axis, title in zip(table[-1], measures, strict=True):
            axis.set_xlabel(title)

    panels = product(scenarios, measures.values())
    for axis, (runs, measure) in zip(axes, panels, strict=True):
        _draw_panel(axis, runs, measure)
        axis.set_title(style.name(runs[0], series))

    # the names of methods stand once in a row of panels if its panels have the same methods
    same_methods = all(names == methods[0] for names in methods)
    if same_methods or len(measures) > 1:
        for axis in axes:
            place = axis.get_subplotspec()
            if place is not None and not place.is_first_col():
                axis.tick_params(labelleft=False)
    return figure


def _draw_panel(axis: style.Axes, runs: Sequence[PlottedRun], measure: Measure) -> None:
    """Draw a row per method: its seeds as points, their mean, and the interval of the mean."""
    methods = list(grouped(runs, ["method"]).values())
    for row, method_runs in enumerate(methods):
        look = method_runs[0].style
        values = np.array([measure(run) for run in method_runs])

        # a point per seed, spread a little so that equal numbers are all seen
        offsets = np.zeros(1)
        if len(values) > 1:
            offsets = np.linspace(-SPREAD, SPREAD, len(values))
        points: style.Keywords = {"color": look.colour, "marker": look.marker}
        axis.scatter(values, row + offsets, s=12, alpha=0.45, linewidth=0, **points)

        # the mean and its interval; one seed has none
        mean = float(values.mean())
        low, high = verdicts.mean_interval(values)
        axis.plot([low, high], [row, row], color=look.colour, linewidth=2)
        edge: style.Keywords = {"markeredgecolor": "white", "markeredgewidth": 0.5}
        axis.plot([mean], [row], markersize=8, **edge, **points)

    # the first method is the highest row
    axis.set_yticks(range(len(methods)), [style.legend_text(own[0].title) for own in methods])
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
