"""Tabulate accuracies of a grid's combinations: ranked, or with averages by row and column."""

import pandas as pd

from fedloom.common.schema import Count, Natural
from fedloom.config.output_kinds import GridTable
from fedloom.config.settings import KindSpec
from fedloom.planning.job_specs import TableJob
from fedloom.planning.output_runs import PlottedRun
from fedloom.report import requirements
from fedloom.report.metrics import grouped, member, of_members
from fedloom.report.tables.accuracy import describe_rounds
from fedloom.report.tables.layout import EMPTY, Built, cell, unmarked
from fedloom.report.tables.published import of_grid
from fedloom.report.tables.summary import GROUP, differing_columns

ALL = "all"  # value of an axis over which an average is taken
AVERAGE = "average"  # scenario: the mean of all others


class Ranked(GridTable):
    """A grid's combinations in order of mean accuracy, and the mean of all (FedPHA Table 7)."""

    best: Count = 10
    """Number of combinations to show from the top."""
    worst: Natural = 1
    """Number of combinations to show from the bottom."""

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return all combinations of every scenario in order; the text shows the first and last.

        Equal accuracies keep the order of the grid.
        """
        axes = list(member(runs[0]).at)
        parts = [_ranked(group, axes, job.published) for group in grouped(runs).values()]

        frame = pd.concat(parts, ignore_index=True)
        shown = pd.concat([self._shown(part, axes) for part in parts], ignore_index=True)
        keys = differing_columns(frame)
        columns = [*keys, "rank", *axes, "text"]
        titles = [*map(str.capitalize, keys), "Rank", *axes, "Mean accuracy"]
        caption = (
            f"combinations of {', '.join(axes)} by the mean accuracy in % over participating "
            f"clients, {describe_rounds(runs)}; mean ± standard deviation over seeds. The first "
            "is the best of "
            "many on the test images, and better than it would be on others."
        )
        if job.published is not None:
            columns = [*columns, "published"]
            titles = [*titles, "Published"]
        return Built(frame, unmarked(shown[columns], len(keys) + 1, titles), caption)

    def _shown(self, table: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
        """Return the rows that the text shows: the first, a gap, the last, and the mean of all."""
        pairs = zip(table["accuracy"], table["std"], strict=True)
        shown = table.fillna(dict.fromkeys(axes, "")).assign(
            text=[cell(accuracy, std=std) for accuracy, std in pairs],
            published=table["published"].map(cell),
        )
        count = len(table) - 1
        if self.best + self.worst >= count:
            return shown
        gap = shown.head(1).assign(**dict.fromkeys(["rank", *axes, "text"], "..."), published=EMPTY)
        return pd.concat([shown.head(self.best), gap, shown.iloc[count - self.worst :]])


def _ranked(runs: list[PlottedRun], axes: list[str], entry: dict | None) -> pd.DataFrame:
    """Return the combinations of one scenario, best first, and their mean as the last row."""
    table = of_members(runs).sort_values("accuracy", ascending=False, kind="stable")
    table.insert(0, "rank", [str(number + 1) for number in range(len(table))])
    names = [*map(", ".join, table[axes].itertuples(index=False)), "mean"]
    mean = {"rank": f"mean of {len(table)}", "accuracy": table["accuracy"].mean()}
    table = pd.concat([table, pd.DataFrame([mean])], ignore_index=True)
    scenario = f"{runs[0].dataset}/{runs[0].partition}"
    table["published"] = [of_grid(entry, scenario, name) for name in names]
    for key in reversed(GROUP):
        table.insert(0, key, getattr(runs[0], key))
    return table


class GridAverages(GridTable):
    """Mean accuracy over a grid of two axes, with averages by row and column (FedPHA Table 8)."""

    spec = KindSpec(shows="grid", requires=(requirements.two_axes,))

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a panel per scenario, and first the average over scenarios if there are several.

        Rows are the values of the grid's last axis, columns those of the first.
        """
        across, down = member(runs[0]).at
        panels: dict[tuple[str, ...], pd.DataFrame] = {}
        for scenario, group in grouped(runs).items():
            long = of_members(group)
            table = long.pivot(index=down, columns=across, values="accuracy")
            table = table.reindex(index=long[down].unique(), columns=long[across].unique())
            table[ALL] = table.mean(axis=1)
            table.loc[ALL] = table.mean(axis=0)
            panels[scenario] = table

        if len(panels) > 1:
            average = pd.concat(panels.values()).groupby(level=0, sort=False).mean()
            panels = {(AVERAGE,) * len(GROUP): average} | panels

        # one row per cell, with the paper's number
        frames = []
        first, second = sorted([across, down])  # as numbers.yaml names a cell
        for scenario, table in panels.items():
            place = AVERAGE if AVERAGE in scenario else "/".join(scenario[:2])
            long = table.reset_index().melt(down, var_name=across, value_name="accuracy")
            long["published"] = [
                of_grid(job.published, place, f"{first} {one}, {second} {other}")
                for one, other in zip(long[first], long[second], strict=True)
            ]
            frames.append(long.assign(**dict(zip(GROUP, scenario, strict=True))))
        frame = pd.concat(frames, ignore_index=True)

        # the text of the cells, and the panels below each other
        pairs = zip(frame["accuracy"], frame["published"], strict=True)
        texts = [cell(mean) + ("" if pd.isna(p) else f" ({cell(p)})") for mean, p in pairs]
        shown = frame.assign(text=texts)
        shown = shown.pivot_table("text", [*GROUP, down], across, "first", sort=False)
        shown = shown.reset_index().replace({down: {ALL: "Average"}})
        keys = differing_columns(frame[frame["dataset"] != AVERAGE])
        columns = [*keys, down, *frame[across].unique()]
        values = ["Average" if name == ALL else name for name in columns[len(keys) + 1 :]]
        titles = [*map(str.capitalize, keys), f"{down} / {across}", *values]
        where = f"over participating clients and {len({run.seed for run in runs})} seed(s)"
        when = describe_rounds(runs)
        caption = f"mean accuracy in % {where}, {when}, with averages of rows and columns."
        return Built(frame, unmarked(shown[columns], len(keys) + 1, titles), caption)
