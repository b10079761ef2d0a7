"""Accuracies of a grid's combinations: in order, and with averages of rows and columns."""

import pandas as pd

from fedloom.common.schema import Count, Natural
from fedloom.config.output_kinds import GridTable
from fedloom.report import requirements
from fedloom.report.metrics import grouped, member, of_members
from fedloom.report.tables.accuracy import at
from fedloom.report.tables.layout import BEST, EMPTY, Built, Texts, cell, unmarked
from fedloom.report.tables.published import NAN, of_grid, source
from fedloom.report.tables.summary import GROUP, varied
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import PlottedRun

MEAN = "mean"  # row of the paper's table
GAP = "..."
ALL = "all"  # value of an axis over which an average is taken
AVERAGE = "average"  # scenario: the mean of all others
DECIMALS = 2


class Ranked(GridTable):
    """A grid's combinations in order of mean accuracy, and the mean of all (FedPHA Table 7)."""

    best: Count = 10
    """Combinations shown from the top."""
    worst: Natural = 1
    """Combinations shown from the bottom."""

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return all combinations of every scenario in order; the text shows the first and last.

        Equal accuracies keep the order of the grid.
        """
        axes = list(member(runs[0]).at)
        parts = [_ranked(group, axes, job.published) for group in grouped(runs).values()]
        frame = pd.concat(parts, ignore_index=True)
        shown = pd.concat([self._shown(part, axes) for part in parts], ignore_index=True)
        keys = varied(frame)
        columns = [*keys, "rank", *axes, "text"]
        titles = [*map(str.capitalize, keys), "Rank", *axes, "Mean accuracy"]
        seeds = len({run.seed for run in runs})
        spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
        caption = (
            f"combinations of {', '.join(axes)} by the mean accuracy in % over participating "
            f"clients, {at(runs)}; {spread}. The first is the best of many on the test images, and "
            "better than it would be on others."
        )
        if job.published is not None:
            columns.append("published")
            titles.append("Published")
            caption += f" Published: {source(job.published)}."
        return Built(frame, unmarked(shown[columns], titles, len(keys) + 1), caption)

    def _shown(self, table: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
        """Return the rows that the text shows: the first, a gap, the last, and the mean of all."""
        shown = table.assign(
            text=[cell(row["accuracy"], row["std"], "", DECIMALS) for _, row in table.iterrows()],
            published=[cell(value, NAN, "", DECIMALS) for value in table["published"]],
        )
        shown[axes] = shown[axes].fillna("")
        count = len(table) - 1
        if self.best + self.worst >= count:
            return shown
        gap = dict.fromkeys(["rank", *axes, "text"], GAP) | {"published": EMPTY}
        gap |= {key: table[key].iloc[0] for key in GROUP}
        last = shown.iloc[count - self.worst :]
        return pd.concat([shown.iloc[: self.best], pd.DataFrame([gap]), last])


def _ranked(runs: list[PlottedRun], axes: list[str], entry: dict | None) -> pd.DataFrame:
    """Return the combinations of one scenario, best first, and their mean as the last row."""
    first = runs[0]
    table = of_members(runs).sort_values("accuracy", ascending=False, kind="stable")
    table.insert(0, "rank", [str(number + 1) for number in range(len(table))])
    names = [*map(", ".join, table[axes].itertuples(index=False)), MEAN]
    mean = {"rank": f"mean of {len(table)}", "accuracy": table["accuracy"].mean()}
    table = pd.concat([table, pd.DataFrame([mean])], ignore_index=True)
    scenario = f"{first.dataset}/{first.partition}"
    table["published"] = [of_grid(entry, scenario, name) for name in names]
    for key in reversed(GROUP):
        table.insert(0, key, getattr(first, key))
    return table


class GridAverages(GridTable):
    """Mean accuracy over a grid of two axes, with averages by row and column (FedPHA Table 8)."""

    requires = (requirements.two_axes,)

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a panel per scenario, and first the average over scenarios if there are several.

        Rows are the values of the grid's last axis, columns those of the first.
        """
        across, down = member(runs[0]).at
        panels: dict[tuple[str, ...], pd.DataFrame] = {}
        for scenario, group in grouped(runs).items():
            long = of_members(group)
            table = long.pivot(index=down, columns=across, values="accuracy")
            order = {"index": long[down].unique(), "columns": long[across].unique()}
            panels[scenario] = with_averages(table.reindex(**order))
        if len(panels) > 1:
            average = pd.concat(panels.values()).groupby(level=0, sort=False).mean()
            panels = {(AVERAGE,) * len(GROUP): average} | panels
        frames, cells, marks = [], [], []
        first, second = sorted([across, down])  # as workflow/published names a cell
        seeds = len({run.seed for run in runs})
        for scenario, table in panels.items():
            labels = dict(zip(GROUP, scenario, strict=True))
            place = AVERAGE if AVERAGE in scenario else "/".join(scenario[:2])
            long = table.reset_index().melt(down, var_name=across, value_name="accuracy")
            long["published"] = [
                of_grid(job.published, place, f"{first} {one}, {second} {other}")
                for one, other in zip(long[first], long[second], strict=True)
            ]
            frames.append(long.assign(**labels))
            long["text"] = list(map(_cell, long["accuracy"], long["published"]))
            texts = long.pivot(index=down, columns=across, values="text")
            texts = texts.loc[table.index, table.columns].reset_index()
            cells.append(texts.replace({down: {ALL: "Average"}}).assign(**labels))
            marks.append(_marks(table, seeds > 1))
        frame = pd.concat(frames, ignore_index=True)
        keys = varied(frame[frame["dataset"] != AVERAGE])
        columns = [*keys, down, *frame[across].unique()]
        bold = pd.concat(marks, ignore_index=True).reindex(columns=columns).fillna("")
        values = ["Average" if name == ALL else name for name in columns[len(keys) + 1 :]]
        titles = [*map(str.capitalize, keys), f"{down} / {across}", *values]
        shown = pd.concat(cells, ignore_index=True)[columns]
        caption = (
            f"mean accuracy in % over participating clients, {at(runs)}, mean of {seeds} "
            f"{'seed' if seeds == 1 else 'seeds'}, with averages of rows and columns."
        )
        if seeds > 1:
            caption += " Best combination bold; it is the best of many on the test images."
        if job.published is not None:
            caption += f" In brackets: {source(job.published)}."
        return Built(frame, Texts(shown, bold, titles, len(keys) + 1), caption)


def with_averages(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the averages of its rows, of its columns, and of all."""
    wide = table.assign(**{ALL: table.mean(axis=1)})
    wide.loc[ALL] = wide.mean(axis=0)
    return wide


def _cell(value: float, paper: float) -> str:
    """Write an accuracy, the published one in brackets."""
    text = cell(value, NAN, "", DECIMALS)
    return text if pd.isna(paper) else f"{text} ({paper:.{DECIMALS}f})"


def _marks(table: pd.DataFrame, many: bool) -> pd.DataFrame:
    """Mark the best combination of a panel as printed, of many seeds; averages are none."""
    inner = table.drop(index=ALL, columns=ALL).round(DECIMALS)
    best = (inner == inner.max().max()) & many
    marks = best.map(lambda flag: BEST if flag else "").reindex_like(table).fillna("")
    return marks.reset_index(drop=True)
