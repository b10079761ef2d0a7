"""Mark rows of a table by signs after the methods' names, and explain the signs below the table."""

from typing import NamedTuple

import pandas as pd

from fedloom.config.grids import describe_options
from fedloom.hooks.manifest import NOTHING
from fedloom.planning import paths
from fedloom.planning.choices import at_edge, read_trials
from fedloom.planning.job_specs import TableJob, Tuned
from fedloom.planning.output_runs import tuned_runs
from fedloom.report.metrics import frame, grouped, loss_not_below_guessing
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.layout import TableText
from fedloom.report.tables.summary import SCENARIO_COLUMNS, metrics


class Mark(NamedTuple):
    """A sign on a row, and its meaning. The table explains it below, and in the column `marks`."""

    sign: str
    text: str


STRANGERS = Mark("†", "the server trained on images of the held-out clients")
GUESSING = Mark("‡", "the training loss is not below that of guessing")
EDGE = Mark("§", "a chosen value is the lowest or highest that was tried, and others may do better")
MARKS = (STRANGERS, GUESSING, EDGE)


def marks_by_row(
    job: TableJob, runs: list[PlottedRun], labelled: list[PlottedRun], table: pd.DataFrame
) -> list[list[Mark]]:
    """Return the marks of every row of a table.

    Args:
        job: the table's job.
        runs: the runs that the table shows.
        labelled: the same runs with the labels that `summarise` was given.
        table: the summary, with a row per scenario and method.
    """
    # find the marks of the runs of every row
    row = [*SCENARIO_COLUMNS, "method"]
    found: dict[tuple, set[Mark]] = {}
    held_out = any(name.startswith("held_out") for name in metrics(table))
    tuned = tuned_runs(runs, job.tuned)
    for run, shown in zip(runs, labelled, strict=True):
        own = found.setdefault(tuple(getattr(shown, key) for key in row), set())
        if held_out and run.sees_held_out:
            own.add(STRANGERS)
        # a loss that no step has changed says nothing of the training
        has_loss = run.artefact is None and run.trains != NOTHING
        if has_loss and loss_not_below_guessing(frame(run.rounds)):
            own.add(GUESSING)
        if run in tuned and at_edge(*read_trials(paths.path_for(paths.TRIALS, run))):
            own.add(EDGE)

    # in the order of the table
    rows = table[row].itertuples(index=False)
    return [[mark for mark in MARKS if mark in found[tuple(each)]] for each in rows]


def with_signs(texts: TableText, marks: list[list[Mark]]) -> TableText:
    """Return the table with signs after the titles of rows, and lines that explain the signs."""
    signs = ["".join(mark.sign for mark in own) for own in marks]
    pairs = zip(texts.cells["title"], signs, strict=True)
    cells = texts.cells.assign(title=[f"{title} {sign}".rstrip() for title, sign in pairs])
    lines = [f"{mark.sign} {mark.text}." for mark in MARKS if any(mark in own for own in marks)]
    return texts._replace(cells=cells, notes=tuple(lines))


def tuning(runs: list[PlottedRun], tuned: Tuned) -> list[str]:
    """Say how options were chosen, and what was chosen; by scenario if the table has several."""
    rounds = f"{' or '.join(map(str, tuned.rounds))} rounds"
    if tuned.rounds == (1,):
        rounds = "1 round"
    how = (
        f"Options chosen from {tuned.trials} trials of every method, each of {rounds} and with "
        f"seed {tuned.seed}, by the accuracy of participating clients on a held-back share of "
        f"{tuned.share:.4g} of their training images."
    )

    # the options of every method, by scenario
    several = len(grouped(runs)) > 1
    parts = []
    for scenario, group in grouped(tuned_runs(runs, tuned)).items():
        chosen = []
        for run in group:
            options, _ = read_trials(paths.path_for(paths.TRIALS, run))
            chosen.append(f"{run.title}: {', '.join(describe_options(options))}")

        part = "; ".join(chosen)
        if several:
            part = f"{'/'.join(scenario)}: {part}"
        parts.append(part)
    return [how, f"Chosen: {'. '.join(parts)}."]


def privacy(runs: list[PlottedRun]) -> list[str]:
    """Return a sentence about the methods whose wrappers report `secret_noise`; none if none does.

    If a method also reports `epsilon`, the sentence has the largest value of its runs.
    """
    # the last round of every run that reports its noise, by method
    last: dict[str, list[pd.Series]] = {}
    for run in runs:
        rounds = frame(run.rounds)
        if "secret_noise" in rounds:
            last.setdefault(run.title, []).append(rounds.iloc[-1])
    if not last:
        return []

    lines = []
    for title, rows in last.items():
        noise = "noise that anyone with the seed can subtract"
        if all(row["secret_noise"] for row in rows):
            noise = "secret noise"
        if "epsilon" in rows[0]:
            epsilon = max(row["epsilon"] for row in rows)
            rounds = max(row["round"] for row in rows)
            noise = f"epsilon {epsilon:.3g} after {rounds:.0f} rounds, {noise}"
        lines.append(f"{title}: {noise}")
    return [f"Differential privacy: {'; '.join(lines)}."]
