"""Accuracy over a grid of two axes, with the averages of rows and columns (FedPHA, Table 8)."""

import pandas as pd

from fedloom.config import requirements
from fedloom.config.output_kinds import GridTable
from fedloom.report.members import accuracies, member
from fedloom.report.tables.accuracy import at
from fedloom.report.tables.layout import BEST, EMPTY, Built, Texts
from fedloom.report.tables.published import of_grid
from fedloom.report.tables.summary import GROUP, by_scenario
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

ALL = "all"  # value of an axis over which an average is taken
AVERAGE = "average"  # scenario: the mean of all others
DECIMALS = 2


class GridAverages(GridTable):
    """Mean accuracy over a grid of two axes, with averages by row and column (FedPHA Table 8)."""

    needs = (requirements.two_axes,)
    caption = (
        "Mean accuracy of the participating clients at the reported rounds, mean over seeds, "
        "of every combination, with the averages of rows and columns; of several scenarios "
        "first their average."
    )


def build(runs: list[ShownRun], job: TableJob) -> Built:
    """Return a panel per scenario, and first the average over scenarios where there are several.

    Rows are the values of the grid's last axis, columns those of the first.
    """
    across, down = member(runs[0]).at
    panels: dict[tuple[str, ...], pd.DataFrame] = {}
    for (dataset, partition, backbone), group in by_scenario(runs).items():
        long = accuracies(group)
        table = long.pivot(index=down, columns=across, values="accuracy")
        table = table.reindex(index=long[down].unique(), columns=long[across].unique())
        panels[dataset, partition, backbone] = with_averages(table)
    if len(panels) > 1:
        average = pd.concat(panels.values()).groupby(level=0, sort=False).mean()
        panels = {(AVERAGE, AVERAGE, AVERAGE): average} | panels
    frames, cells, marks = [], [], []
    many = len({run.seed for run in runs}) > 1
    for scenario, table in panels.items():
        long = table.reset_index().melt(down, var_name=across, value_name="accuracy")
        place = AVERAGE if scenario[0] == AVERAGE else "/".join(scenario[:2])
        long["published"] = [
            of_grid(job.published, place, _name({across: row[across], down: row[down]}))
            for _, row in long.iterrows()
        ]
        frames.append(long.assign(**dict(zip(GROUP, scenario, strict=True))))
        cells.append(_cells(long, table, scenario, across, down))
        marks.append(_marks(table, many))
    frame = pd.concat(frames, ignore_index=True)
    shown = pd.concat(cells, ignore_index=True)
    keys = [key for key in GROUP if frame.loc[frame[key] != AVERAGE, key].nunique() > 1]
    columns = [*keys, down, *panels[next(iter(panels))].columns]
    bold = pd.concat(marks, ignore_index=True).reindex(columns=columns).fillna("")
    bold.columns = columns
    titles = [
        *map(str.capitalize, keys),
        f"{down} / {across}",
        *map(_title, columns[len(keys) + 1 :]),
    ]
    return Built(frame, Texts(shown[columns], bold, titles, len(keys) + 1), _caption(job, runs))


def with_averages(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the averages of its rows, of its columns, and of all."""
    wide = table.assign(**{ALL: table.mean(axis=1)})
    wide.loc[ALL] = wide.mean(axis=0)
    return wide


def _name(at: dict[str, str]) -> str:
    """Return the name of a cell in workflow/published: its axes in alphabetical order."""
    return ", ".join(f"{axis} {value}" for axis, value in sorted(at.items()))


def _title(name: str) -> str:
    """Return the heading of a column."""
    return "Average" if name == ALL else name


def _cells(
    long: pd.DataFrame, table: pd.DataFrame, scenario: tuple, across: str, down: str
) -> pd.DataFrame:
    """Return a panel as text, published numbers in brackets."""
    texts = table.copy().astype(object)
    for _, row in long.iterrows():
        value, paper = row["accuracy"], row["published"]
        text = EMPTY if pd.isna(value) else f"{value:.{DECIMALS}f}"
        text += "" if pd.isna(paper) else f" ({paper:.{DECIMALS}f})"
        texts.loc[row[down], row[across]] = text
    texts = texts.reset_index()
    texts[down] = texts[down].map(_title)
    return texts.assign(**dict(zip(GROUP, scenario, strict=True)))


def _marks(table: pd.DataFrame, many: bool) -> pd.DataFrame:
    """Mark the best combination of a panel as printed, of many seeds; averages are none."""
    inner = table.drop(index=ALL, columns=ALL).round(DECIMALS)
    best = (inner == inner.max().max()) & many
    marks = best.map(lambda flag: BEST if flag else "")
    return marks.reindex(index=table.index, columns=table.columns, fill_value="").reset_index(
        drop=True
    )


def _caption(job: TableJob, runs: list[ShownRun]) -> str:
    """Say what the cells are."""
    seeds = len({run.seed for run in runs})
    text = (
        f"{job.title or f'Study {job.study}'}: mean accuracy in % over participating clients, "
        f"{at(runs)}, mean of {seeds} {'seed' if seeds == 1 else 'seeds'}, with averages of rows "
        "and columns."
    )
    if seeds > 1:
        text += " Best combination bold; it is the best of many on the test images."
    if job.published is not None:
        text += f" In brackets: {job.published['citation']}, Table {job.published['table']}."
    return text
