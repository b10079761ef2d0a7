"""Draw counted answers: how sure they are and how often right, and which classes are confused."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedloom.common.run_tables import CALIBRATION_BINS
from fedloom.config.output_kinds import RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.report import metrics, requirements, scores
from fedloom.report.figures import style
from fedloom.report.figures.grid_plots import COLOUR_MAP
from fedloom.report.plotted_runs import PlottedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# inches of a panel: at 200 dots per inch, three of them side by side have 1,560 dots
PANEL = (2.6, 2.6)
DOTS_PER_INCH = 200
# the names of at most this many classes have room at an axis
MOST_NAMES = 20
# the letters of the longest name that has room there
MOST_LETTERS = 12
# the percentages of at most this many classes have room in the cells
MOST_NUMBERS = 10


class Reliability(RunsFigure):
    """Accuracy by confidence (reliability diagram), a panel per method.

    Points show the accuracy and the mean confidence of the answers in each of 15 bins of
    confidence, grey bars the share of all answers. On the dashed line, accuracy equals confidence;
    below it, a method is too sure. Answers are those to the test images of all participating
    clients, over all seeds, after the last reported round. The number is the expected calibration
    error (ECE) of these answers, the mean over seeds.
    """

    spec = KindSpec(
        run_tables=("calibration",),
        requires=(requirements.counted_answers, requirements.nine_panels),
    )
    dots_per_inch = DOTS_PER_INCH

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel for each scenario and method."""
        groups = _by_method(series)
        figure, axes = style.panels(len(groups), size=PANEL, sharey=True)
        for axis, runs in zip(axes, groups, strict=True):
            counted = [scores.counts_of(run, run.calibration, _last_round(run)) for run in runs]
            _draw_reliability(axis, pd.concat(counted))
            # seeds are other models, so their errors are averaged, and not those of all answers
            error = fmean(scores.calibration_error(counts) for counts in counted)
            axis.text(4, 98, f"ECE {error:.1f} %", va="top")
            axis.set(title=_title(runs[0], series), xlabel="Confidence (%)")
        figure.supylabel("Accuracy, share of answers (%)")
        style.legend(figure, axes)
        return figure


def _draw_reliability(axis: Axes, calibration: pd.DataFrame) -> None:
    """Draw accuracy by confidence, and the share of answers in each bin."""
    bins = scores.by_bin(calibration)
    share = 100 * bins["count"] / bins["count"].sum()
    confidence = 100 * bins["confidence"] / bins["count"]
    accuracy = 100 * bins["correct"] / bins["count"]

    width = 100 / CALIBRATION_BINS
    left = width * bins.index.to_numpy()
    look = {"align": "edge", "color": "#cccccc", "edgecolor": "white", "linewidth": 0.5}
    axis.bar(left, share, width, label="share of answers", **look)
    axis.plot([0, 100], [0, 100], color="#555555", linestyle="--", label="accuracy = confidence")
    axis.plot(confidence, accuracy, color=style.LINE_COLOURS[0], marker="o", label="accuracy")
    axis.set(xlim=(0, 100), ylim=(0, 102), xticks=range(0, 101, 25), yticks=range(0, 101, 25))


class Confusion(RunsFigure):
    """Confusion matrices in % of the images of each true class, a panel per method.

    A row is a true class and a column a predicted one, in the order of the data set, so right
    answers are on the diagonal; the row of a class without test images is white. Answers are those
    to the test images of all participating clients, over all seeds, after the last reported round.
    """

    spec = KindSpec(
        run_tables=("confusion",),
        reads="names",
        requires=(requirements.counted_answers, requirements.nine_panels),
    )
    dots_per_inch = DOTS_PER_INCH

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel for each scenario and method; all share one scale."""
        scale = style.shades(0, 100, COLOUR_MAP)
        groups = _by_method(series)
        figure, axes = style.panels(len(groups), size=PANEL)
        for axis, runs in zip(axes, groups, strict=True):
            counted = [scores.counts_of(run, run.confusion, _last_round(run)) for run in runs]
            _draw_matrix(axis, pd.concat(counted), metrics.class_names(runs[0]), scale)
            axis.set(title=_title(runs[0], series), xlabel="Predicted class")
        figure.supylabel("True class")
        figure.colorbar(scale, ax=axes, label="Share of the true class (%)", aspect=40)
        return figure


def _draw_matrix(axis: Axes, confusion: pd.DataFrame, names: Sequence[str], scale: Any) -> None:
    """Draw the share of each predicted class in the images of each true class."""
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (confusion["label"], confusion["predicted"]), confusion["count"])
    images = counts.sum(1, keepdims=True)
    shares = np.divide(100 * counts, images, out=np.full_like(counts, np.nan), where=images > 0)
    axis.imshow(shares, scale.cmap, scale.norm)

    # numbers in the cells, white on dark ones
    if len(names) <= MOST_NUMBERS:
        for row, column in np.argwhere(counts > 0):
            share = shares[row, column]
            colour = "black"
            if share < 50:
                colour = "white"
            look = {"color": colour, "fontsize": style.SMALL, "ha": "center", "va": "center"}
            axis.text(column, row, f"{share:.0f}", **look)

    axis.grid(visible=False)
    if len(names) > MOST_NAMES or max(map(len, names)) > MOST_LETTERS:
        axis.set(xticks=[], yticks=[])
        return
    axis.set_xticks(range(len(names)), names, fontsize=style.SMALL, rotation=90)
    axis.set_yticks(range(len(names)), names, fontsize=style.SMALL)


def _by_method(series: list[PlottedRun]) -> list[list[PlottedRun]]:
    """Return the runs of each scenario and method, which differ in their seeds alone."""
    return list(metrics.grouped(series, (*metrics.SCENARIO, "method")).values())


def _last_round(run: PlottedRun) -> list[int]:
    """Return the last round that tables report of a run, as a list."""
    return [max(run.reported.rounds)]


def _title(run: PlottedRun, series: list[PlottedRun]) -> str:
    """Return the title of a panel: the labels in which its runs differ from others, or a method."""
    return style.run_name(run, series) or run.title
