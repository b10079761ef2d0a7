"""Draw any artefact's column against another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from fedloom.config.output_kinds import ArtefactFigure
from fedloom.report.figures import style
from fedloom.report.figures.artefacts import column, numbers
from fedloom.report.metrics import artefact
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


class Scatter(ArtefactFigure):
    """Any artefact's column y against its column x, a panel per run of the first seed."""

    first_seed = True
    caption = "{y} against {x}, from the methods' artefact {artefact}. First seed."

    colour: str | None = None
    """A column of the artefact that colours the points."""


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a panel per run; points are of the method's colour, or coloured by a column."""
    x, y, shade = job.settings["x"], job.settings["y"], job.settings.get("colour")
    figure, axes = style.panels(len(series))
    frames = [artefact(run) for run in series]
    scale = None if shade is None else _scale(frames, shade, series)
    for axis, run, frame in zip(axes, series, frames, strict=True):
        points: dict[str, Any] = {"color": run.look.colour}
        if scale is not None:
            points = {"c": column(frame, str(shade), run), "norm": scale.norm}
        axis.scatter(
            column(frame, x, run), column(frame, y, run), s=10, marker=run.look.marker, **points
        )
        axis.set(xlabel=x, title=style.name(run, series, (*style.SCENARIO, "title")) or run.title)
        if job.settings["log"]:
            style.log_scale(axis)
    style.left_label(axes, y)
    if scale is not None:
        figure.colorbar(scale, ax=axes, label=shade, shrink=0.8)
    return figure


def _scale(frames: list[pd.DataFrame], shade: str, series: list[ShownRun]) -> ScalarMappable:
    """Return one scale of colours for the column `shade` of all panels.

    Raises:
        FedLoomError: the column does not hold numbers.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    every = pd.concat(
        [numbers(frame, shade, run) for frame, run in zip(frames, series, strict=True)]
    )
    return ScalarMappable(Normalize(every.min(), every.max()))
