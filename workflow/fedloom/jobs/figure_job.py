"""Draw one figure of a study, as PDF and PNG."""

from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob
from fedloom.planning.output_runs import plotted_backbones, plotted_runs
from fedloom.report import figures
from fedloom.report.figures.style import with_styles


def run(job: FigureJob, threads: int) -> None:
    out = paths.path_for(paths.FIGURE, study=job.study, label=job.label)
    items = plotted_backbones(job) if job.shown is None else with_styles(plotted_runs(job.shown))
    figures.write(job, items, {f: out.with_suffix(f".{f}") for f in ("pdf", "png")})
