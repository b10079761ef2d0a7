"""Draw accuracy over the members of a grid: heat maps, points in space, and boxes by client."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedloom.common.ids import entry_of
from fedloom.config.grids import varied_lists
from fedloom.config.output_kinds import RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.report.metrics import accuracy_by_member, axis_title, axis_values, grouped, member
from fedloom.report.plotted_runs import PlottedRun

# from dark to light, the colours of this map have the same order with any colour vision
COLOUR_MAP = "cividis"
# numbers have room in the cells of a panel if there are at most this many cells
LABELLED = 36
# inches of a panel with points in space
SPACE = (4.2, 3.6)


class Grid(RunsFigure):
    """Heat maps of the mean accuracy over a grid's members (FedPHA Fig. 4, 8, Table 8).

    The accuracy is the mean over participating clients at the reported rounds, and over seeds. If
    the axes are entries of a list, the cells are framed in which the first axis has the same value
    as another axis.
    """

    spec = KindSpec(shows="grid", requires=(requirements.two_or_three_axes,))

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario; with three axes, a panel per value of the first axis in each.

        The panels of a scenario share one scale. Members that were not run stay white.
        """
        ticks = _ticks(series)

        # each panel shows a scenario, or its members with one value of the first of three axes
        panels = []
        *first, _, _ = ticks
        for runs in grouped(series).values():
            frame = accuracy_by_member(runs)
            scenario = style.name(runs[0], series)
            scale = style.shades(frame["accuracy"].min(), frame["accuracy"].max(), COLOUR_MAP)
            if not first:
                panels.append((frame, scale, scenario))
                continue

            for value in ticks[first[0]]:
                part = frame[frame[first[0]] == value]
                title = [scenario, f"{axis_title(runs[0], first[0])} = {value}"]
                panels.append((part, scale, ", ".join(filter(None, title))))

        # the members that are framed, if axes are entries of a list
        framed = set()
        if varied_lists(member(series[0])):
            members = {tuple(axis_values(run).values()) for run in series}
            framed = {at for at in members if at[0] in at[1:]}

        figure, axes = style.panels(len(panels))
        for axis, (part, scale, title) in zip(axes, panels, strict=True):
            _heat_map(axis, part, ticks, scale, framed)
            *_, x, y = ticks
            axis.set(xlabel=axis_title(series[0], x), ylabel=axis_title(series[0], y), title=title)
            figure.colorbar(scale, ax=axis, label="Mean accuracy (%)")
        return figure


def _ticks(series: list[PlottedRun]) -> dict[str, list[str]]:
    """Return the values of every axis of the grid as text, in the order of the runs."""
    members = [axis_values(run) for run in series]
    return {axis: list(dict.fromkeys(at[axis] for at in members)) for axis in members[0]}


def _heat_map(
    axis: style.Axes,
    frame: pd.DataFrame,
    ticks: dict[str, list[str]],
    scale: Any,
    framed: set[tuple[str, ...]],
) -> None:
    """Draw a heat map over the last two axes.

    Args:
        axis: the panel.
        frame: a row per member, see `accuracy_by_member`.
        ticks: the values of every axis as text, in order.
        scale: the scale of colours.
        framed: the values of the members that get a frame.
    """
    from matplotlib.patches import Rectangle

    # the cells, in the order of the grid
    *_, x, y = ticks
    table = frame.pivot(index=y, columns=x, values="accuracy")
    cells = table.reindex(index=ticks[y], columns=ticks[x]).to_numpy()
    axis.imshow(cells, scale.cmap, scale.norm, aspect="auto", origin="lower")

    # numbers in the cells, white on dark ones, and frames around some
    for *at, accuracy in frame[[*ticks, "accuracy"]].itertuples(index=False):
        across = ticks[x].index(at[-2])
        up = ticks[y].index(at[-1])
        if cells.size <= LABELLED:
            colour = "black"
            if scale.norm(accuracy) < 0.5:
                colour = "white"
            look = {"color": colour, "fontsize": 7}
            axis.text(across, up, f"{accuracy:.1f}", ha="center", va="center", **look)
        if tuple(at) in framed:
            look = {"fill": False, "edgecolor": "#D55E00", "linewidth": 2, "clip_on": False}
            axis.add_patch(Rectangle((across - 0.5, up - 0.5), 1, 1, zorder=3, **look))

    axis.grid(visible=False)
    axis.set_xticks(range(len(ticks[x])), ticks[x])
    axis.set_yticks(range(len(ticks[y])), ticks[y])


class Scatter3d(RunsFigure):
    """Mean accuracy over a grid of three axes, a coloured point per member (FedPHA Fig. 7, 9).

    The accuracy is the mean over participating clients at the reported rounds, and over seeds.
    """

    spec = KindSpec(shows="grid", requires=(requirements.three_axes,))

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        ticks = _ticks(series)
        groups = grouped(series)
        figure, (axes,) = style.grid(1, len(groups), SPACE, subplot_kw={"projection": "3d"})
        for axis, runs in zip(axes, groups.values(), strict=True):
            # a member's place is that of its values among the ticks
            frame = accuracy_by_member(runs)
            places = []
            for name in ticks:
                places.append([ticks[name].index(value) for value in frame[name]])
            points = axis.scatter(
                *places, s=26, c=frame["accuracy"], cmap=COLOUR_MAP, depthshade=False
            )

            for letter, (name, tick_labels) in zip("xyz", ticks.items(), strict=True):
                getattr(axis, f"set_{letter}ticks")(range(len(tick_labels)), tick_labels)
                getattr(axis, f"set_{letter}label")(axis_title(runs[0], name))

            axis.set_title(style.name(runs[0], series))
            figure.colorbar(points, ax=axis, label="Mean accuracy (%)", shrink=0.6, pad=0.12)
        return figure


class Boxes(RunsFigure):
    """Each client's accuracy by its own entry of the list that a grid varies (FedPHA Fig. 5).

    Client k of K has entry k*n//K of n, so consecutive clients may share an entry. A box shows the
    grid's members with the same entry: the median and the middle half of their accuracies at the
    reported rounds, averaged over seeds. Its whiskers reach to the last point within 1.5 times the
    box, and points lie beyond.
    """

    spec = KindSpec(shows="grid", requires=(requirements.one_list,))

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        # a panel per scenario and client
        items = []
        for runs in grouped(series).values():
            for client, rows in by_client(runs).groupby("client_id"):
                items.append((runs[0], client, rows))

        (option,) = varied_lists(member(series[0]))
        figure, axes = style.panels(len(items))
        for axis, (run, client, rows) in zip(axes, items, strict=True):
            groups = {value: part["accuracy"] for value, part in rows.groupby("value")}
            axis.boxplot(list(groups.values()), widths=0.6, medianprops={"linewidth": 1.6})
            axis.set_xticks(range(1, len(groups) + 1), map(str, groups))

            first = rows.iloc[0]
            title = [style.name(run, series), f"client {client}", first["domain"]]
            label = axis_title(run, f"{option}.{first['entry']}")
            axis.set(xlabel=label, title=", ".join(filter(None, title)))
        figure.supylabel("Test accuracy (%)")
        return figure


def by_client(series: list[PlottedRun]) -> pd.DataFrame:
    """Return a row per participating client and member of a grid, with its mean accuracy.

    `entry` is the position of the client's entry in the list, and `value` is the entry itself.
    `accuracy` is the mean over the reported rounds and over seeds, in percent.
    """
    parts = []
    for run in series:
        rows = metrics.evaluation(run.evaluation)
        clients = rows["client_id"].max() + 1
        rows = rows[rows["round"].isin(run.reported.rounds) & rows["participating"]]

        # the entry of each row's client
        (entries,) = varied_lists(member(run)).values()
        entry = [entry_of(k, clients, len(entries)) for k in rows["client_id"]]
        rows = rows.assign(entry=entry, value=[entries[e] for e in entry], method=run.method)
        parts.append(rows.assign(accuracy=metrics.percent(rows)))

    groups = pd.concat(parts).groupby(["client_id", "entry", "value", "method"], sort=False)
    return groups.agg({"domain": "first", "accuracy": "mean"}).reset_index()
