"""Draw accuracy over the members of a grid: heat maps, points in space, and boxes by client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fedloom.common.ids import SERVER_MODEL, entry_of
from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.report.metrics import axis_values, grouped, member, of_members, varied_lists
from fedloom.study.plot_inputs import PlottedRun

if TYPE_CHECKING:
    from matplotlib.image import AxesImage

MAP = "cividis"  # light and dark in the same order with any colour vision
LABELLED = 36  # cells of a panel that still have room for their numbers
ACROSS = 4  # panels in a row
SIZE = (2.6, 2.3)
SPACE = (4.2, 3.6)  # inches of a panel with points in space


class Grid(RunsFigure):
    """Heat maps of the mean accuracy over a grid's members (FedPHA Fig. 4, 8, Table 8).

    Of the participating clients at the reported rounds, mean over seeds.
    """

    shows = "grid"
    requires = (requirements.two_or_three_axes,)

    frames: Literal["equal", "first"] = "equal"
    """Frame members whose list is the same value throughout, or whose first axis has the value of
    another one (as FedPHA's captions say)."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario and value of the first of three axes; one scale per scenario.

        Scenarios of one panel each share rows.
        """
        scenarios, ticks = grouped(series), _ticks(series)
        boxes = {tuple(axis_values(run).values()) for run in series if self.framed(run)}
        first, *_ = names = list(ticks)
        shown = ticks[first] if len(names) == 3 else [""]
        each, count = len(shown), len(scenarios)
        rows, across = -(-each // ACROSS) * count, min(ACROSS, each)
        if each == 1:
            rows, across = -(-count // ACROSS), min(ACROSS, count)
        figure, axes = style.grid(rows, across, SIZE)
        by_scenario = axes.reshape(count if each > 1 else axes.size, -1)
        for row, runs in zip(by_scenario, scenarios.values(), strict=False):
            frame, scenario = of_members(runs), style.name(runs[0], series)
            panels, images = list(row[:each]), []
            for axis, value in zip(panels, shown, strict=True):
                part = frame[frame[first] == value] if value else frame
                images.append(_heat_map(axis, part, ticks, frame["accuracy"], boxes))
                title = [scenario, f"{first} = {value}" if value else ""]
                axis.set_title(", ".join(filter(None, title)))
            figure.colorbar(images[0], ax=panels, label="Mean accuracy (%)")
        for axis in axes.flat:
            if not axis.has_data():
                axis.remove()
        return figure

    def framed(self, run: PlottedRun) -> bool:
        """Return True if a member is framed."""
        if self.frames == "equal":
            lists = varied_lists(run).values()
            return any(len(each) > 1 and each.count(each[0]) == len(each) for each in lists)
        first, *others = member(run).at.values()
        return first in others


def _ticks(series: list[PlottedRun]) -> dict[str, list[str]]:
    """Return the values of every axis of the grid as text, in the order of the runs."""
    members = [axis_values(run) for run in series]
    return {axis: list(dict.fromkeys(at[axis] for at in members)) for axis in members[0]}


def _heat_map(
    axis: style.Axes,
    frame: pd.DataFrame,
    ticks: dict[str, list[str]],
    scale: pd.Series,
    boxes: set[tuple[str, ...]],
) -> AxesImage:
    """Draw a heat map over the last two axes; members that were not run stay white.

    Args:
        scale: the accuracies that its colours span.
        boxes: values of the members that are framed.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    *_, x, y = ticks
    limits = {"vmin": scale.min(), "vmax": max(scale.max(), scale.min() + 1e-9)}
    table = frame.pivot(index=y, columns=x, values="accuracy")
    cells = table.reindex(index=ticks[y], columns=ticks[x]).to_numpy()
    for at in frame[list(ticks)].itertuples(index=False, name=None):
        if at in boxes:
            corner = (ticks[x].index(at[-2]) - 0.5, ticks[y].index(at[-1]) - 0.5)
            box = Rectangle(corner, 1, 1, fill=False, linewidth=1.2, zorder=3, clip_on=False)
            box.set_path_effects([withStroke(linewidth=2.8, foreground="white")])  # on dark cells
            axis.add_patch(box)
    image = axis.imshow(cells, MAP, aspect="auto", origin="lower", **limits)
    for (up, across), value in np.ndenumerate(cells) if cells.size <= LABELLED else ():
        if np.isfinite(value):
            dark = value - limits["vmin"] < 0.5 * (limits["vmax"] - limits["vmin"])
            axis.text(
                across, up, f"{value:.1f}", ha="center", va="center", fontsize=7,
                color="white" if dark else "black",
            )  # fmt: skip
    axis.grid(visible=False)
    axis.set_xticks(range(len(ticks[x])), ticks[x])
    axis.set_yticks(range(len(ticks[y])), ticks[y])
    axis.set(xlabel=x, ylabel=y)
    return image


class Scatter3d(RunsFigure):
    """Mean accuracy over a grid of three axes, a coloured point per member (FedPHA Fig. 7, 9).

    Of the participating clients at the reported rounds, mean over seeds.
    """

    shows = "grid"
    requires = (requirements.three_axes,)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario, each with its scale of colours."""
        ticks, groups = _ticks(series), grouped(series)
        figure, (axes,) = style.grid(1, len(groups), SPACE, projection="3d")
        for axis, runs in zip(axes, groups.values(), strict=True):
            frame = of_members(runs)
            x, y, z = ([ticks[name].index(v) for v in frame[name]] for name in ticks)
            look: dict[str, Any] = {"c": frame["accuracy"], "cmap": MAP, "depthshade": False}
            points = axis.scatter(x, y, zs=z, s=26, **look)
            for letter, (name, of_axis) in zip("xyz", ticks.items(), strict=True):
                getattr(axis, f"set_{letter}ticks")(range(len(of_axis)), of_axis)
                getattr(axis, f"set_{letter}label")(name)
            axis.set_title(style.name(runs[0], series))
            figure.colorbar(points, ax=axis, label="Mean accuracy (%)", shrink=0.6, pad=0.12)
        return figure


class Boxes(RunsFigure):
    """Each client's accuracy over a grid's members, by its own entry of the list that the grid
    varies; consecutive clients share an entry, client k of K the entry k*n//K of n (FedPHA Fig.
    5).

    At the reported rounds, mean over seeds: median, middle half, whiskers to the last point within
    1.5 times the box, and points beyond.
    """

    shows = "grid"
    requires = (requirements.one_list,)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario and client; a box spans the members that give it one value."""
        (option,) = varied_lists(series[0])
        items = [
            (runs[0], client, rows)
            for runs in grouped(series).values()
            for client, rows in by_client(runs).groupby("client_id")
        ]
        several = len({rows["domain"].iloc[0] for *_, rows in items}) > 1
        figure, axes = style.panels(len(items))
        for axis, (run, client, rows) in zip(axes, items, strict=True):
            groups = {value: part["accuracy"] for value, part in rows.groupby("value")}
            axis.boxplot(
                list(groups.values()), widths=0.6, patch_artist=True,
                boxprops={"facecolor": "#cfe3f1"}, medianprops={"color": "black", "linewidth": 1.6},
                flierprops={"marker": ".", "markersize": 4},
            )  # fmt: skip
            axis.set_xticks(range(1, len(groups) + 1), map(str, groups))
            first = rows.iloc[0]
            title = [style.name(run, series), f"client {client}", first["domain"] * several]
            axis.set(xlabel=f"{option}.{first['entry']}", title=", ".join(filter(None, title)))
        style.left_label(axes, "Test accuracy (%)")
        return figure


def by_client(series: list[PlottedRun]) -> pd.DataFrame:
    """Return a row per participating client and member of a grid.

    Columns are `client_id`, `domain`, `entry` (the position of the client's entry in the list),
    `value` (that entry), `method`, and `accuracy` in percent, the mean over the reported rounds
    and seeds.
    """
    parts = []
    for run in series:
        (entries,) = varied_lists(run).values()
        rows = metrics.evaluation(run.evaluation)
        rows = rows[rows["client_id"] != SERVER_MODEL]
        clients = int(rows["client_id"].max()) + 1
        rows = rows[rows["round"].isin(run.reported.rounds) & rows["participating"]]
        entry = [entry_of(k, clients, len(entries)) for k in rows["client_id"]]
        rows = rows.assign(entry=entry, value=[entries[e] for e in entry], method=run.method)
        parts.append(rows.assign(accuracy=metrics.percent(rows)))
    keys = ["client_id", "entry", "value", "method"]
    grouped = pd.concat(parts).groupby(keys, sort=False)
    return grouped.agg({"domain": "first", "accuracy": "mean"}).reset_index()
