"""Make tables. A kind of table is a class in this folder, or in a plugin. It has its keys and

    measure(run: PlottedRun, **extra) -> {metric: number}   one run, from its Parquet files
    column(metric: str) -> Column                           heading, decimals, which end is best
    describe(runs: list[PlottedRun]) -> str                 what the caption says is measured
    select_columns(measured: list[dict]) -> list[dict]      optional: the numbers that are shown

or, if the rows of the table are not methods,

    build(runs: list[PlottedRun], job: TableJob) -> Built   rows, their text, and the caption

`extra` are the values that the kind's `complete` adds, by name. fedloom.config.output_kinds
explains the classes.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.config.kind_plugins import call_kind
from fedloom.config.kinds import KINDS
from fedloom.planning.job_specs import TableJob
from fedloom.report.plotted_runs import PlottedRun

if TYPE_CHECKING:
    from fedloom.report.tables.layout import FinishedTable


def instantiate_kind(job: TableJob) -> Any:
    """Return an instance of a table's kind; its keys were checked when the study was planned."""
    found: Any = KINDS["tables"][job.kind]
    return found.model_construct(**job.settings)


def build_table(job: TableJob, runs: list[PlottedRun]) -> "FinishedTable":
    """Return a table: its numbers, its text, and its whole caption."""
    own = instantiate_kind(job)
    make = partial(_of_methods, own)
    if hasattr(own, "build"):
        make = own.build
    built = call_kind("table", job.kind, lambda: make(runs, job))

    # the whole caption
    caption = f"{job.title or f'Study {job.study}'}: {built.caption}"
    if job.remark is not None:
        caption = f"{job.remark} {caption}"
    if job.published is not None:
        paper = job.published["citation"]
        table = job.published["table"]
        caption += f" Published, in brackets or a column: {paper}, Table {table}."
    if job.narrowed:
        caption += f" {job.narrowed}"
    return built._replace(caption=caption)


def write_table(job: TableJob, runs: list[PlottedRun], outputs: dict[str, Path]) -> None:
    """Write a table as `md`, `csv`, `tex` (booktabs), `html` and `parquet`."""
    # imported here, because a plan imports tables only for their keys
    from fedloom.report.tables import layout

    layout.write_formats(build_table(job, runs), f"tab:{job.study}-{job.label}", outputs)


def _of_methods(own: Any, runs: list[PlottedRun], job: TableJob) -> "FinishedTable":
    """Return a row per method and scenario: means over seeds, published numbers and marks."""
    from fedloom.report.tables import layout, notes, published
    from fedloom.report.tables.summary import over_partitions, summarise

    # the numbers of every run, and their means over seeds
    extra = own.extra_of(job.settings)
    measured = own.select_columns([own.measure(run, **extra) for run in runs])
    labelled = runs
    if own.needs().across_partitions:
        labelled, measured = over_partitions(runs, measured)
    frame = summarise(labelled, measured)

    # say in the caption what the numbers are
    seeds = int(frame["seeds"].min())
    spread = f"mean ± standard deviation over {seeds} seeds. Best bold, second underlined."
    if seeds == 1:
        spread = "one seed, so that nothing is marked as best."
    text = f"{own.describe(runs)}; {spread}"

    # add published numbers, chosen options and privacy
    if job.published is not None:
        frame = published.join_published(frame, job.published)
        text += published.explanation(frame)
    if job.tuned is not None:
        text += f" {notes.tuning(runs, job.tuned)}"
    text += notes.privacy([run for run in runs if run.artefact is None])

    # add signs after the methods' names
    marks = notes.marks_by_row(job, runs, labelled, frame)
    texts = notes.with_signs(layout.summary_text(frame, own.column), marks)
    frame["marks"] = ["; ".join(mark.text for mark in row) for row in marks]
    return layout.FinishedTable(frame, texts, text)
