"""Tables: a kind is a module of this folder; what all tables share is in layout and summary.

A kind has

    measure(run: ShownRun, job: TableJob) -> {metric: number}   one run, from its Parquet files
    column(metric: str) -> Column                               heading, decimals, which end is best
    describe(job: TableJob, runs: list[ShownRun]) -> str        what the caption says is measured

or, if its rows are not the methods,

    build(runs: list[ShownRun], job: TableJob) -> Built         rows, their text, and the caption

and a class with its keys, and what it needs and shows (fedloom.config.output_kinds).
"""

import importlib
from pathlib import Path
from types import ModuleType

from fedloom.report.tables import choices, layout, marks, privacy, published
from fedloom.report.tables.summary import summarise
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun


def kind(name: str) -> ModuleType:
    """Import the module of a kind of table."""
    return importlib.import_module(f"fedloom.report.tables.{name}")


def write(job: TableJob, runs: list[ShownRun], outputs: dict[str, Path]) -> None:
    """Write a table.

    Args:
        outputs: paths of the `md`, `csv`, `tex` (booktabs), `html` and `parquet`.
    """
    module, label = kind(job.kind), f"tab:{job.study}-{job.label}"
    if hasattr(module, "build"):
        built: layout.Built = module.build(runs, job)
        layout.write(built.frame, built.texts, built.caption, label, outputs)
        return
    frame = summarise(runs, [module.measure(run, job) for run in runs])
    text = caption(job, module.describe(job, runs), int(frame["seeds"].min()))
    if job.published is not None:
        frame = published.beside(frame, job.published)
        text += (
            f" Published: {job.published['citation']}, Table {job.published['table']}; in "
            "brackets, how far it is from ours, in standard deviations (SD) of both together."
        )
    if job.tuned is not None:
        text += f" {choices.footnote(job.shown, job.tuned)}"
    text += privacy.footnote([run for run in runs if run.artefact is None])
    found = marks.marked(job, runs, frame)
    texts = marks.with_signs(layout.texts(frame, module.column), found)
    frame["marks"] = ["; ".join(mark.text for mark in own) for own in found]
    layout.write(frame, texts, text, label, outputs)


def caption(job: TableJob, measured: str, seeds: int) -> str:
    """Return the title, what is measured, over how many seeds, and how it is marked."""
    title = job.title or f"Study {job.study}"
    if seeds == 1:
        return f"{title}: {measured}; one seed, so that nothing is marked as best."
    spread = f"mean ± standard deviation over {seeds} seeds"
    return f"{title}: {measured}; {spread}. Best bold, second underlined."
