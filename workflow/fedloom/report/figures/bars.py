"""Draw any artefact's column by another as bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedloom.config.output_kinds import ArtefactFigure
from fedloom.report.figures import style
from fedloom.report.figures.artefacts import column, numbers
from fedloom.report.metrics import artefact
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

WIDTH = 0.8  # of the bars of one x together, in steps of the axis


class Bars(ArtefactFigure):
    """Any artefact's column y by its column x as bars, the methods side by side."""

    caption = (
        "{y} by {x}, from the methods' artefact {artefact}: mean over seeds, whiskers one "
        "sample standard deviation each way."
    )


def means(series: list[ShownRun], x: str, y: str) -> pd.DataFrame:
    """Return mean and sample standard deviation (NaN of one seed) over seeds, by method and x."""
    parts = []
    for run in series:
        frame = artefact(run)
        values = numbers(frame, y, run).groupby(column(frame, x, run), sort=False).mean()
        parts.append(
            pd.DataFrame({"method": run.method, "x": values.index, "y": values.to_numpy()})
        )
    grouped = pd.concat(parts).groupby(["method", "x"], sort=False)["y"]
    return grouped.agg(["mean", "std"])


def side_by_side(axis: style.Axes, runs: Sequence[ShownRun], frame: pd.DataFrame) -> None:
    """Draw `mean` as bars, `std` as whiskers; the frame's index is method and place on the axis."""
    values = list(dict.fromkeys(frame.index.get_level_values(1)))
    methods = {run.method: run for run in runs}
    width = WIDTH / len(methods)
    for number, (label, run) in enumerate(methods.items()):
        part = frame.loc[label].reindex(values)
        left = np.arange(len(values)) - WIDTH / 2 + (number + 0.5) * width
        axis.bar(
            left, part["mean"], width, yerr=part["std"], label=style.legend_text(run.title),
            color=run.look.colour, hatch=style.HATCHES[run.look.line], edgecolor="white",
            capsize=2,
        )  # fmt: skip
    axis.set_xticks(range(len(values)), map(str, values))


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per scenario, the methods side by side."""
    x, y = job.settings["x"], job.settings["y"]
    groups = style.scenarios(series)
    figure, axes = style.panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        side_by_side(axis, runs, means(runs, x, y))
        axis.set(xlabel=x, title=style.name(runs[0], series))
        if job.settings["log"]:
            style.log_scale(axis)
    style.left_label(axes, y)
    style.legend(figure, axes)
    return figure
