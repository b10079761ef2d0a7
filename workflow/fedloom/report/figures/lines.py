"""Draw any artefact's column by another, a line per method."""

from __future__ import annotations

import pandas as pd

from fedloom.config.output_kinds import ArtefactFigure
from fedloom.report.figures import style
from fedloom.report.figures.artefacts import column, numbers
from fedloom.report.figures.curves import bands, lines
from fedloom.report.metrics import artefact
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class Lines(ArtefactFigure):
    """Any artefact's column y by its column x, one line per method (PFPT Fig. 4)."""

    caption = (
        "{y} by {x}, from the methods' artefact {artefact}: mean over seeds, the band one "
        "sample standard deviation wide each way."
    )


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per scenario; rows of one x are averaged within a run."""
    x, y = job.settings["x"], job.settings["y"]

    def curve(run: ShownRun, name: str) -> pd.Series:
        frame = artefact(run)
        return numbers(frame, name, run).groupby(column(frame, x, run)).mean()

    groups = style.scenarios(series)
    figure, axes = style.panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        lines(axis, runs, bands(runs, y, curve), log=job.settings["log"], x=x)
        axis.set_title(style.name(runs[0], series))
    style.left_label(axes, y)
    style.legend(figure, axes)
    return figure
