"""Draw one number of every run: a point per seed, and the mean of a method with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.report import requirements, verdicts
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import ACCURACY_AXES, accuracy
from fedloom.report.metrics import grouped
from fedloom.report.plotted_runs import PlottedRun

# inches of a row, of the space above and below the rows of a panel, and of a panel's width
ROW = 0.28
MARGIN = 0.75
WIDTH = 4.2
# how far the points of a row are spread around its middle, in rows
SPREAD = 0.22


class SeedPoints(RunsFigure):
    """An accuracy of every run: a row per method, a point per seed.

    The mean over seeds is a large marker, and a line shows Student's 95 % interval of the mean. The
    panels are scenarios, and share their axes.
    """

    spec = KindSpec(requires=(requirements.global_test,))

    metric: AccuracyMetric = "participating_mean"
    """Accuracy to show: the mean or the worst over participating or held-out clients, or `global`,
    on all test images (needs `study.global_test`)."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel for each scenario."""

        def measure(run: PlottedRun) -> float:
            return accuracy(run, self.metric, self.personalized)

        return draw_points(series, measure, ACCURACY_AXES[self.metric])


def draw_points(
    series: Sequence[PlottedRun], measure: Callable[[PlottedRun], float], title: str
) -> style.Figure:
    """Draw a panel per scenario, with a row per method in the order of the runs.

    Args:
        series: the runs, each with a style.
        measure: returns the number of a run.
        title: the title of the numbers' axis.
    """
    groups = list(grouped(series).values())
    most_rows = max(len(grouped(runs, ["method"])) for runs in groups)
    size = (WIDTH, MARGIN + ROW * most_rows)
    figure, axes = style.panels(len(groups), size=size, sharex=True)

    for axis, runs in zip(axes, groups, strict=True):
        _draw_panel(axis, runs, measure)
        axis.set_title(style.name(runs[0], series))
    figure.supxlabel(title)
    return figure


def _draw_panel(
    axis: style.Axes, runs: Sequence[PlottedRun], measure: Callable[[PlottedRun], float]
) -> None:
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
        axis.plot([mean], [row], markersize=7, markeredgecolor="white", **points)

    # the first method is the highest row
    axis.set_yticks(range(len(methods)), [style.legend_text(own[0].title) for own in methods])
    axis.set_ylim(len(methods) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
