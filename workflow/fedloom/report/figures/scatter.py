"""Draw any artefact's column against another."""

from matplotlib.figure import Figure

from fedloom.plan.jobs import FigureJob
from fedloom.plan.shown import ShownRun
from fedloom.report.figures import style
from fedloom.report.figures.artefacts import column
from fedloom.report.metrics import artefact


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a panel per run; points are of the method's colour, or coloured by a column."""
    x, y, shade = job.settings["x"], job.settings["y"], job.settings.get("colour")
    figure, axes = style.panels(len(series))
    points = None
    for axis, run in zip(axes, series, strict=True):
        frame = artefact(run)
        colours = [run.look.colour] if shade is None else column(frame, shade, run)
        points = axis.scatter(
            column(frame, x, run), column(frame, y, run), s=10, c=colours, marker=run.look.marker
        )
        axis.set(xlabel=x, title=style.name(run, series, (*style.SETTING, "title")) or run.title)
        if job.settings["log"]:
            style.log_scale(axis)
    style.left_label(axes, y)
    if shade is not None and points is not None:
        figure.colorbar(points, ax=axes, label=shade, shrink=0.8)
    return figure
