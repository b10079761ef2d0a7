"""Draw an accuracy by partition as bars, the methods side by side (PFPT, Fig. 1)."""

from __future__ import annotations

import pandas as pd

from fedloom.config import requirements
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import AXES, accuracy, over_seeds
from fedloom.report.figures.bars import side_by_side
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

PANEL = ("dataset", "backbone")


class AccuracyBars(RunsFigure):
    """An accuracy by partition as bars, the methods side by side (PFPT Fig. 1)."""

    needs = (requirements.global_test,)
    caption = (
        "{metric} in percent by partition: mean over seeds, whiskers one sample standard "
        "deviation each way. The axis may begin above zero; the lowest bar is then at least "
        "half as long as the highest."
    )

    metric: AccuracyMetric = "participating_mean"
    """The accuracy."""
    personalized: Personalized = True


def ends(frame: pd.DataFrame) -> tuple[float, float]:
    """Return where the axis of accuracies `mean` +- `std` begins and ends, in percent.

    It begins at a multiple of ten that leaves the lowest bar at least half as long as the highest.
    """
    std = frame["std"].fillna(0)
    low, high = float((frame["mean"] - std).min()), float((frame["mean"] + std).max())
    begin = max(0, (low - max(high - low, 5)) // 10 * 10)
    return begin, min(103, high + 0.05 * (high - begin))


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per dataset and backbone; whiskers are one standard deviation over seeds."""
    metric, personalized = job.settings["metric"], job.settings["personalized"]
    groups = style.scenarios(series, PANEL)
    figure, axes = style.panels(len(groups))
    frames = []
    for axis, runs in zip(axes, groups.values(), strict=True):
        numbers = over_seeds(
            runs,
            lambda run: (run.method, run.partition),
            lambda run: accuracy(run, metric, personalized),
        )
        index = pd.MultiIndex.from_tuples(numbers)  # pyright: ignore[reportArgumentType]
        frames.append(pd.DataFrame(list(numbers.values()), index, ["mean", "std"]))
        side_by_side(axis, runs, frames[-1])
        axis.set_title(style.name(runs[0], series, PANEL))
    for axis in axes:
        axis.set_ylim(ends(pd.concat(frames)))  # so that panels compare
    style.left_label(axes, AXES[metric])
    style.legend(figure, axes)
    return figure
