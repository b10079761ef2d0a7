"""Draw which groups the clients choose, and when (SGPT, Fig. 2c and 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class GroupCounts(RunsFigure):
    """Groups that clients choose while training, first seed (SGPT Fig. 2c, 3)."""

    artefact_name = "group_counts"
    first_seed = True
    caption = (
        "How many training images chose each group of prompts in the rounds together, by "
        "client and by round: shares of a row's images. First seed."
    )


def shares(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return each group's share of the selections, a row per client or round, as `by` says."""
    counts = frame.pivot_table("count", by, "group", "sum", fill_value=0)
    return counts.div(counts.sum(axis=1), axis=0)


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a row per run: shares of the groups by client, all rounds together, and by round."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = style.grid(len(series), 2, (4, 3))
    image = None
    for row, run in zip(axes, series, strict=True):
        frame = metrics.artefact(run)
        for axis, by in zip(row, ("client", "round"), strict=True):
            table = shares(frame, by)
            image = axis.imshow(table.to_numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=1)
            axis.set(xlabel="Group", ylabel=by.capitalize())
            axis.grid(visible=False)
            axis.xaxis.set_major_locator(MaxNLocator(10, integer=True))
            shown = np.linspace(0, len(table) - 1, min(len(table), 8)).round().astype(int)
            axis.set_yticks(shown, table.index[shown])
        row[0].set_title(style.name(run, series, (*style.SCENARIO, "title")), loc="left")
    if image is not None:
        figure.colorbar(image, ax=axes, label="Share of the selections", shrink=0.8)
    return figure
