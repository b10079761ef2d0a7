"""Marks on rows of a table: a sign behind the method's name, and a line for it below the table."""

from typing import NamedTuple

import pandas as pd

from fedloom.report.metrics import frame, no_better_than_guessing
from fedloom.report.tables.layout import Texts
from fedloom.report.tables.summary import GROUP, metrics
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun, choices
from fedloom.study.selected import at_edge, tried


class Mark(NamedTuple):
    """A sign, and what it says of a row: below the table, and in the column `marks`."""

    sign: str
    text: str


STRANGERS = Mark("†", "held-out clients are no strangers: the server trained on their images")
GUESSING = Mark(
    "‡", "no better than guessing: the training loss stays at the log of the classes or above"
)
EDGE = Mark("§", "a chosen value is the lowest or highest that was tried, and others may do better")
MARKS = (STRANGERS, GUESSING, EDGE)
ROW = [*GROUP, "method"]


def marked(job: TableJob, runs: list[ShownRun], table: pd.DataFrame) -> list[list[Mark]]:
    """Return the marks of every row.

    Args:
        runs: those that the rows are made of.
        table: of `summarise`.
    """
    found: dict[tuple, set[Mark]] = {}
    held_out = any(name.startswith("held_out") for name in metrics(table))
    for run in runs:
        own = found.setdefault(tuple(getattr(run, key) for key in ROW), set())
        if held_out and run.plugin.sees_held_out:
            own.add(STRANGERS)
        if run.artefact is None and no_better_than_guessing(frame(run.rounds)):
            own.add(GUESSING)
    for choice in choices(job.shown, job.tuned) if job.tuned else ():
        if at_edge(*tried(choice.trials)):
            found[*choice.scenario.split("/"), choice.method].add(EDGE)
    rows = table[ROW].itertuples(index=False)
    return [[mark for mark in MARKS if mark in found[tuple(row)]] for row in rows]


def with_signs(texts: Texts, marks: list[list[Mark]]) -> Texts:
    """Return the table with the signs behind the rows' titles, and the lines that explain them."""
    cells = texts.cells.copy()
    signs = ["".join(mark.sign for mark in own) for own in marks]
    pairs = zip(cells["title"], signs, strict=True)
    cells["title"] = [f"{title} {sign}" if sign else title for title, sign in pairs]
    lines = [f"{mark.sign} {mark.text}." for mark in MARKS if any(mark in own for own in marks)]
    return texts._replace(cells=cells, notes=tuple(lines))
