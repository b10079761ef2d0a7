"""Tabulate accuracies of a grid's combinations: ranked, or with averages by row and column."""

import pandas as pd

from fedloom.common.schema import Count, Natural
from fedloom.config.output_kinds import GridTable
from fedloom.config.settings import KindSpec
from fedloom.planning.job_specs import TableJob
from fedloom.report import requirements
from fedloom.report.metrics import accuracy_by_member, axis_title, grouped, member
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.accuracy import describe_rounds
from fedloom.report.tables.layout import EMPTY, FinishedTable, TableText, cell, plain_text
from fedloom.report.tables.published import printed_mean
from fedloom.report.tables.summary import SCENARIO_COLUMNS, differing_columns

# the value on an axis of an average over all its values
ALL = "all"
# the name of the scenario that stands for the average over all scenarios
AVERAGE = "average"
FOUND_AMONG_MANY = (
    "The first combination was found among many by its accuracy on these test images, so that it "
    "is probably less accurate on other images."
)


class Ranked(GridTable):
    """A grid's combinations in order of mean accuracy, and the mean of all (FedPHA Table 7)."""

    best: Count = 10
    """Number of combinations to show from the top."""
    worst: Natural = 1
    """Number of combinations to show from the bottom."""

    def build(self, runs: list[PlottedRun], job: TableJob) -> FinishedTable:
        """Return all combinations of every scenario, the best first.

        The text shows only the best and the worst combinations, and the mean of all. Combinations
        with equal accuracies keep the order of the grid.
        """
        axes = list(member(runs[0]).at)
        parts = [_ranked(group, axes, job.published) for group in grouped(runs).values()]

        frame = pd.concat(parts, ignore_index=True)

        # the columns of the text
        shown = pd.concat([self._shown(part, axes) for part in parts], ignore_index=True)
        keys = differing_columns(frame)
        columns = [*keys, "rank", *axes, "text"]
        axis_titles = [axis_title(runs[0], axis) for axis in axes]
        titles = [*map(str.capitalize, keys), "Rank", *axis_titles, "Mean accuracy"]
        if job.published is not None:
            columns.append("published")
            titles.append("Published")

        caption = (
            f"combinations of {', '.join(axis_titles)} by the mean test accuracy of participating "
            "clients in %, mean ± standard deviation over seeds."
        )
        texts = plain_text(shown[columns], len(keys) + 1, titles)
        texts = texts._replace(notes=(FOUND_AMONG_MANY,))
        return FinishedTable(
            frame, texts, caption, (f"Accuracies are from {describe_rounds(runs)}.",)
        )

    def _shown(self, table: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
        """Return the rows of the text: the best, a gap, the worst, and the mean of all."""
        pairs = zip(table["accuracy"], table["std"], strict=True)
        shown = table.fillna(dict.fromkeys(axes, "")).assign(
            text=[cell(accuracy, std=std) for accuracy, std in pairs],
            published=table["published"].map(cell),
        )

        # the last row is the mean of the others
        count = len(table) - 1
        if self.best + self.worst >= count:
            return shown
        gap = shown.head(1).assign(**dict.fromkeys(["rank", *axes, "text"], "..."), published=EMPTY)
        return pd.concat([shown.head(self.best), gap, shown.iloc[count - self.worst :]])


def _ranked(runs: list[PlottedRun], axes: list[str], entry: dict | None) -> pd.DataFrame:
    """Return the combinations of one scenario, best first, and their mean as the last row.

    `entry` has the paper's numbers, see `fedloom.report.tables.published`.
    """
    table = accuracy_by_member(runs).sort_values("accuracy", ascending=False, kind="stable")
    table.insert(0, "rank", [str(number + 1) for number in range(len(table))])
    names = [*map(", ".join, table[axes].itertuples(index=False)), "mean"]

    mean = {"rank": f"mean of {len(table)}", "accuracy": table["accuracy"].mean()}
    table = pd.concat([table, pd.DataFrame([mean])], ignore_index=True)

    # the paper's number of every row, and the labels of the scenario
    scenario = f"{runs[0].dataset}/{runs[0].partition}"
    table["published"] = [printed_mean(entry, scenario, name) for name in names]
    for key in reversed(SCENARIO_COLUMNS):
        table.insert(0, key, getattr(runs[0], key))
    return table


class GridAverages(GridTable):
    """Mean accuracy over a grid of two axes, with averages by row and column (FedPHA Table 8)."""

    spec = KindSpec(shows="grid", requires=(requirements.two_axes,))

    def build(self, runs: list[PlottedRun], job: TableJob) -> FinishedTable:
        """Return a panel per scenario; if there are several, the first panel is their average.

        Rows are the values of the grid's last axis, and columns are the values of its first axis.
        """
        across, down = member(runs[0]).at
        panels = {}
        for scenario, group in grouped(runs).items():
            panels[scenario] = _panel(group, across, down)
        if len(panels) > 1:
            average = pd.concat(panels.values()).groupby(level=0, sort=False).mean()
            panels = {(AVERAGE,) * len(SCENARIO_COLUMNS): average} | panels

        frames = [
            _with_published(scenario, table, across, down, job.published)
            for scenario, table in panels.items()
        ]
        frame = pd.concat(frames, ignore_index=True)

        seeds = len({run.seed for run in runs})
        caption = (
            f"mean test accuracy of participating clients in %, over {seeds} seed(s), with "
            "averages of rows and columns."
        )
        titles = {axis: axis_title(runs[0], axis) for axis in (across, down)}
        details = (f"Accuracies are from {describe_rounds(runs)}.",)
        return FinishedTable(frame, _panels_as_text(frame, titles), caption, details)


def _panel(runs: list[PlottedRun], across: str, down: str) -> pd.DataFrame:
    """Return mean accuracies of one scenario by two axes, with averages of rows and columns."""
    long = accuracy_by_member(runs)
    table = long.pivot(index=down, columns=across, values="accuracy")

    # values in the order of the grid, not of the alphabet
    table = table.reindex(index=long[down].unique(), columns=long[across].unique())

    table[ALL] = table.mean(axis=1)
    table.loc[ALL] = table.mean(axis=0)
    return table


def _with_published(
    scenario: tuple[str, ...], table: pd.DataFrame, across: str, down: str, entry: dict | None
) -> pd.DataFrame:
    """Return a row per cell of a scenario's panel, with the paper's number and the labels."""
    place = "/".join(scenario[:2])
    if AVERAGE in scenario:
        place = AVERAGE
    long = table.reset_index().melt(down, var_name=across, value_name="accuracy")

    # numbers.yaml names a cell by its axes in the order of the alphabet
    first, second = sorted([across, down])
    long["published"] = [
        printed_mean(entry, place, f"{first} {one}, {second} {other}")
        for one, other in zip(long[first], long[second], strict=True)
    ]
    return long.assign(**dict(zip(SCENARIO_COLUMNS, scenario, strict=True)))


def _panels_as_text(frame: pd.DataFrame, axis_titles: dict[str, str]) -> TableText:
    """Write the panels below each other, the paper's numbers in brackets.

    `axis_titles` has the titles of the axis of the columns and of that of the rows, in this order.
    """
    across, down = axis_titles
    texts = []
    for mean, published in zip(frame["accuracy"], frame["published"], strict=True):
        text = cell(mean)
        if not pd.isna(published):
            text += f" ({cell(published)})"
        texts.append(text)

    shown = frame.assign(text=texts)
    shown = shown.pivot_table("text", [*SCENARIO_COLUMNS, down], across, "first", sort=False)
    shown = shown.reset_index().replace({down: {ALL: "Average"}})

    # the labels in which panels differ, and the values of both axes
    keys = differing_columns(frame[frame["dataset"] != AVERAGE])
    columns = [*keys, down, *frame[across].unique()]
    values = ["Average" if name == ALL else name for name in columns[len(keys) + 1 :]]
    titles = [*map(str.capitalize, keys), f"{axis_titles[down]} / {axis_titles[across]}", *values]
    return plain_text(shown[columns], len(keys) + 1, titles)
