"""Write one table of a study, in every format."""

from fedloom.report import tables
from fedloom.study import paths
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import plotted_runs


def run(job: TableJob, threads: int) -> None:
    out = paths.at(paths.TABLE, study=job.study, label=job.label)
    files = {name: out.with_suffix(f".{name}") for name in paths.TABLE_FORMATS}
    tables.write(job, plotted_runs(job.shown), files)
