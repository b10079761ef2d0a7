"""Draw one figure of a study, as PDF and PNG."""

from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob
from fedloom.report import figures
from fedloom.report.figures.style import with_styles
from fedloom.report.plotted_runs import plotted_backbones, plotted_runs


def run_job(job: FigureJob, threads: int) -> None:
    """Write the figure of a study's runs, or of frozen backbones."""
    if job.shown is None:
        items = plotted_backbones(job)
    else:
        items = with_styles(plotted_runs(job.shown))

    out = paths.path_for(paths.FIGURE, study=job.study, label=job.label)
    files = {"pdf": out.with_suffix(".pdf"), "png": out.with_suffix(".png")}
    figures.write_figure(job, items, files)
