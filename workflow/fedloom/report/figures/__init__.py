"""Draw figures. A kind of figure is a class in this folder, or in a plugin, with its keys and

    draw(series: list[PlottedRun], **extra) -> Figure

`series` are the runs that the figure shows (fedloom.report.plotted_runs), or frozen backbones.
`extra` are the values that the kind's `complete` adds, by name. fedloom.config.output_kinds
explains the classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.config.kind_plugins import call_kind
from fedloom.config.kinds import KINDS
from fedloom.planning.job_specs import FigureJob
from fedloom.report.plotted_runs import PlottedBackbone, PlottedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_figure(job: FigureJob, series: Sequence[PlottedRun | PlottedBackbone]) -> "Figure":
    """Draw a figure; its keys were checked when the study was planned."""
    kind: Any = KINDS["figures"][job.kind]
    return kind.model_construct(**job.settings).draw(series, **kind.extra_of(job.settings))


def write_figure(
    job: FigureJob, series: Sequence[PlottedRun | PlottedBackbone], outputs: dict[str, Path]
) -> None:
    """Draw a figure into the paths of its `pdf` and `png`."""
    # imported here, because a plan imports figures only for their keys
    from matplotlib.figure import Figure

    from fedloom.report.figures import style

    def draw_and_save() -> None:
        figure = draw_figure(job, series)
        if not isinstance(figure, Figure):
            type_name = type(figure).__name__
            raise TypeError(f"draw must return a matplotlib Figure, got {type_name}")
        if job.remark is not None:
            style.add_remark(figure, job.remark)
        kind: Any = KINDS["figures"][job.kind]
        style.save_figure(figure, outputs, kind.dots_per_inch)

    with style.house_style():
        call_kind("figure", job.kind, draw_and_save)
