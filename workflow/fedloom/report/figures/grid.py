"""Draw accuracy over a grid of options as heat maps (FedPHA, Fig. 4 and 8, Table 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from fedloom.config import requirements
from fedloom.config.output_kinds import RunsFigure
from fedloom.report.figures import style
from fedloom.report.members import accuracies, member, values, varied_lists
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MAP = "cividis"  # light and dark in the same order with any colour vision
LABELLED = 36  # cells of a panel that still have room for their numbers
ACROSS = 4  # panels in a row
SIZE = (2.6, 2.3)


class Grid(RunsFigure):
    """Heat maps of the mean accuracy over a grid's members (FedPHA Fig. 4, 8, Table 8)."""

    shows = "grid"
    needs = (requirements.two_or_three_axes,)
    caption = (
        "Mean accuracy of the participating clients at the reported rounds, mean over seeds, "
        "of every member of the grid. Framed: members whose list is the same throughout "
        "(equal), or whose first axis has the value of another one (first); here {frames}."
    )

    frames: Literal["equal", "first"] = "equal"
    """Frame members whose list is the same value throughout, or whose first axis has the value of
    another one (as FedPHA's captions say)."""


def framed(series: list[ShownRun], frames: str) -> set[tuple[str, ...]]:
    """Return the members that are framed, by their values on the axes.

    Args:
        frames: `equal`: a list which the grid varies holds the same value throughout; `first`: the
            first axis has the value of another one.
    """
    chosen = _equal if frames == "equal" else _first
    return {tuple(values(run).values()) for run in series if chosen(run)}


def _equal(run: ShownRun) -> bool:
    """Return True if a list that the grid varies holds the same value throughout."""
    return any(len(v) > 1 and all(e == v[0] for e in v) for v in varied_lists(run).values())


def _first(run: ShownRun) -> bool:
    """Return True if the first axis has the value of another one."""
    first, *others = member(run).at.values()
    return first in others


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a panel per scenario and value of the first of three axes; one scale per scenario."""
    scenarios = style.scenarios(series)
    frames = [accuracies(runs) for runs in scenarios.values()]
    boxes = framed(series, job.settings["frames"])
    names = list(member(series[0]).at)
    ticks = [list(dict.fromkeys(values(run)[axis] for run in series)) for axis in names]
    shown = ticks[0] if len(names) == 3 else [None]
    alone = len(shown) == 1  # then scenarios stand beside each other
    across = min(ACROSS, len(frames) if alone else len(shown))
    down = -(-len(frames) // across) if alone else len(frames) * -(-len(shown) // across)
    figure, axes = style.grid(down, across, SIZE)
    rows = list(axes.flat) if alone else axes.reshape(len(frames), -1)
    for number, (runs, frame) in enumerate(zip(scenarios.values(), frames, strict=True)):
        panels = [rows[number]] if alone else list(rows[number])[: len(shown)]
        scenario = style.name(runs[0], series)
        image = None
        for axis, value in zip(panels, shown, strict=True):
            part = frame if value is None else frame[frame[names[0]] == value]
            image = _panel(axis, part, names, ticks[-2:], frame["accuracy"], boxes)
            first = f"{names[0]} = {value}" if value is not None else ""
            axis.set_title(", ".join(filter(None, [scenario, first])))
        if image is not None:
            figure.colorbar(image, ax=panels, label="Mean accuracy (%)")
    for axis in axes.flat:
        if not axis.has_data():
            axis.remove()
    return figure


def _panel(
    axis: Axes,
    frame: pd.DataFrame,
    names: list[str],
    ticks: list[list],
    scale: pd.Series,
    boxes: set[tuple[str, ...]],
) -> AxesImage:
    """Draw one heat map and return what a colour bar needs; members that were not run stay white.

    Args:
        names: the grid's axes; the last two are drawn.
        scale: the accuracies that its colours span.
        boxes: values of the members that are framed.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    cells = np.full([len(v) for v in reversed(ticks)], np.nan)
    limits = {"vmin": scale.min(), "vmax": max(scale.max(), scale.min() + 1e-9)}
    for _, row in frame.iterrows():
        across, up = (v.index(row[name]) for name, v in zip(names[-2:], ticks, strict=True))
        cells[up, across] = row["accuracy"]
        if tuple(row[names]) in boxes:
            corner = (across - 0.5, up - 0.5)
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
    axis.set_xticks(range(len(ticks[0])), ticks[0])
    axis.set_yticks(range(len(ticks[1])), ticks[1])
    axis.set(xlabel=names[-2], ylabel=names[-1])
    return image
