"""The combinations of a grid in order of their accuracy, with the mean of all (FedPHA, Table 7)."""

import pandas as pd

from fedloom.common.schema import Count, Natural
from fedloom.config.output_kinds import GridTable
from fedloom.report.members import accuracies, member
from fedloom.report.tables.accuracy import at
from fedloom.report.tables.layout import EMPTY, Built, Texts, cell
from fedloom.report.tables.published import of_grid
from fedloom.report.tables.summary import GROUP, by_scenario
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

MEAN = "mean"  # row of the paper's table
DECIMALS = 2


class Ranked(GridTable):
    """A grid's combinations in order of mean accuracy, and the mean of all (FedPHA Table 7)."""

    caption = (
        "Combinations of the grid by mean accuracy of the participating clients at the "
        "reported rounds: the {best} best, the {worst} worst, and the mean of all. The first "
        "is the best of many on the test images, and better than it would be on others."
    )

    best: Count = 10
    """Combinations shown from the top."""
    worst: Natural = 1
    """Combinations shown from the bottom."""


def build(runs: list[ShownRun], job: TableJob) -> Built:
    """Return all combinations of every scenario in order; the text shows the first and the last.

    Equal accuracies stand in the order of the grid.
    """
    axes = list(member(runs[0]).at)
    parts = [_ranked(group, axes, job) for group in by_scenario(runs).values()]
    frame = pd.concat(parts, ignore_index=True)
    best, worst = job.settings["best"], job.settings["worst"]
    shown = pd.concat([_shown(part, axes, best, worst) for part in parts], ignore_index=True)
    keys = [key for key in GROUP if frame[key].nunique() > 1]
    columns = [*keys, "rank", *axes, "text"]
    titles = [*map(str.capitalize, keys), "Rank", *axes, "Mean accuracy"]
    if job.published is not None:
        columns.append("published")
        titles.append("Published")
    cells = shown[columns]
    marks = pd.DataFrame("", index=cells.index, columns=cells.columns)
    return Built(frame, Texts(cells, marks, titles, len(keys) + 1), _caption(job, runs, axes))


def _ranked(runs: list[ShownRun], axes: list[str], job: TableJob) -> pd.DataFrame:
    """Return the combinations of one scenario, best first, and their mean as the last row."""
    first = runs[0]
    table = accuracies(runs).sort_values("accuracy", ascending=False, kind="stable")
    table.insert(0, "rank", [str(number + 1) for number in range(len(table))])
    mean = {"rank": f"mean of {len(table)}", "accuracy": table["accuracy"].mean()}
    table = pd.concat([table, pd.DataFrame([mean])], ignore_index=True)
    names = [", ".join(row) for row in table[axes].fillna("").itertuples(index=False)]
    scenario = f"{first.dataset}/{first.partition}"
    table["published"] = [of_grid(job.published, scenario, name) for name in [*names[:-1], MEAN]]
    for key in reversed(GROUP):
        table.insert(0, key, getattr(first, key))
    return table


def _shown(table: pd.DataFrame, axes: list[str], best: int, worst: int) -> pd.DataFrame:
    """Return the rows that the text shows: the first, a gap, the last, and the mean of all."""
    count = len(table) - 1
    ranks = list(range(count))
    first, last = ranks[:best], ranks[best:][-worst:] if worst else []
    shown = table.iloc[[*first, *last, count]].copy()
    shown["text"] = [cell(row["accuracy"], row["std"], "", DECIMALS) for _, row in shown.iterrows()]
    shown["published"] = [cell(value, float("nan"), "", DECIMALS) for value in shown["published"]]
    shown[axes] = shown[axes].fillna("")
    if len(first) + len(last) < count:
        gap = {name: "..." if name in ("rank", *axes, "text") else EMPTY for name in shown}
        gap |= {key: shown[key].iloc[0] for key in GROUP}
        rows = [shown.iloc[:best], pd.DataFrame([gap]), shown.iloc[best:]]
        shown = pd.concat(rows, ignore_index=True)
    return shown


def _caption(job: TableJob, runs: list[ShownRun], axes: list[str]) -> str:
    """Say what is ranked, and that its best is not an estimate."""
    seeds = len({run.seed for run in runs})
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    text = (
        f"{job.title or f'Study {job.study}'}: combinations of {', '.join(axes)} by the mean "
        f"accuracy in % over participating clients, {at(runs)}; {spread}. The first is the best of "
        "many on the test images, and better than it would be on others."
    )
    if job.published is not None:
        text += f" Published: {job.published['citation']}, Table {job.published['table']}."
    return text
