"""Write one table of a study, in every format."""

from fedloom.planning import paths
from fedloom.planning.job_specs import TableJob
from fedloom.report import tables
from fedloom.report.plotted_runs import plotted_runs


def run_job(job: TableJob, threads: int) -> None:
    """Write the table as Markdown, CSV, TeX, HTML and Parquet."""
    out = paths.path_for(paths.TABLE, study=job.study, label=job.label)
    files = {name: out.with_suffix(f".{name}") for name in paths.TABLE_FORMATS}
    tables.write_table(job, plotted_runs(job.shown), files)
