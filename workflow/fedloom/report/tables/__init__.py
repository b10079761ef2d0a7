"""Make tables. A kind of table is a class in this folder, or in a plugin. It has its keys and

    measure(run: PlottedRun, **extra) -> {metric: number}   one run, from its Parquet files
    column(metric: str) -> Column                           heading, decimals, which end is best
    describe(runs: list[PlottedRun]) -> str                 what the caption says is measured
    explain(runs: list[PlottedRun]) -> tuple[str, ...]      sentences on how they were made
    select_columns(measured: list[dict]) -> list[dict]      optional: the numbers that are shown

or, if the rows of the table are not methods,

    build(runs: list[PlottedRun], job: TableJob) -> FinishedTable

The caption is one sentence above the table. The sentences of `explain`, which a kind may leave out,
are folded away below it.

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
    """Return a table: its numbers, its text, and its whole caption and details."""
    own = instantiate_kind(job)
    make = partial(_of_methods, own)
    if hasattr(own, "build"):
        make = own.build
    built = call_kind("table", job.kind, lambda: make(runs, job))

    # what warns a reader stays in the caption
    caption = f"{job.title or f'Study {job.study}'}: {built.caption}"
    if job.remark is not None:
        caption = f"{job.remark} {caption}"
    if job.narrowed:
        caption += f" {job.narrowed}"

    # the citation of published numbers is among the details
    details = built.details
    if job.published is not None:
        paper = job.published["citation"]
        table = job.published["table"]
        details += (f"Published, in brackets or a column: {paper}, Table {table}.",)
    return built._replace(caption=caption, details=details)


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

    # say how the numbers were made, the options chosen, and with what privacy
    details = [*own.explain(runs)]
    if job.published is not None:
        frame = published.join_published(frame, job.published)
        details += published.explanation(frame)
    if job.tuned is not None:
        details += notes.tuning(runs, job.tuned)
    details += notes.privacy([run for run in runs if run.artefact is None])

    # add signs after the methods' names
    marks = notes.marks_by_row(job, runs, labelled, frame)
    shown = layout.summary_text(frame, own.column)
    texts = notes.with_signs(shown, marks)
    frame["marks"] = ["; ".join(mark.text for mark in row) for row in marks]

    # say in the caption what the numbers are
    seeds = int(frame["seeds"].min())
    spread = f"mean ± standard deviation over {seeds} seeds"
    if seeds == 1:
        spread = "one seed"
    if (shown.marks == layout.BEST).to_numpy().any():
        spread += ", best bold, second underlined"
    caption = f"{own.describe(runs)}, {spread}."
    return layout.FinishedTable(frame, texts, caption, tuple(details))
