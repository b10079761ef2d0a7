"""Draw whether every class prompt learns something of its own (PEP-FedPT, Fig. 7)."""

from __future__ import annotations

from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.report.figures.tsne import embed
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class PromptTsne(RunsFigure):
    """t-SNE of the trained class prompts, first seed (PEP-FedPT Fig. 7)."""

    artefact_name = "class_prompts"
    first_seed = True
    caption = "t-SNE of the trained class prompts, a point per class. First seed."


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per run, a point per class, in the colour of the method."""
    figure, axes = style.panels(len(series))
    for axis, run in zip(axes, series, strict=True):
        frame = metrics.artefact(run).sort_values("class")
        points = embed(frame["vector"], metrics.artefact_file(run))
        look = style.of_method(run.look)
        axis.scatter(*points.T, s=12, color=look["color"], marker=look["marker"], linewidth=0)
        for label, point in zip(frame["class"], points, strict=True):
            axis.annotate(
                str(label), point, (3, 2), textcoords="offset points", fontsize=6, color="#444444"
            )
        axis.margins(0.1)
        style.map_axes(axis)
        axis.set_title(style.name(run, series, (*style.SCENARIO, "title")) or run.title)
    return figure
