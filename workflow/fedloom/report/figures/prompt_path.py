"""Draw how a set of prompts moves over rounds (PFPT, Fig. 3 and 5)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.report.figures.tsne import embed, sample
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

CENTRE, PATH = "#E69F00", "#D55E00"


class PromptPath(RunsFigure):
    """t-SNE of the server's prompts over rounds (PFPT Fig. 3, 5)."""

    artefact_name = "prompt_history"
    first_seed = True
    caption = (
        "t-SNE of the server's prompts of several rounds, in one map; triangles are the "
        "centroids of a round's prompts, the dashed line their path. First seed."
    )


def mapped(path: Path) -> pd.DataFrame:
    """Return `round`, `x` and `y` of a run's prompts, all in one t-SNE map.

    Args:
        path: Parquet file with the columns `round` and `vector`.
    """
    frame = sample(metrics.frame(path).sort_values("round", kind="stable"))
    points = embed(frame["vector"], path)
    return pd.DataFrame({"round": frame["round"].to_numpy(), "x": points[:, 0], "y": points[:, 1]})


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per run, all its rounds in one map; a triangle at every round's centroid."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = style.panels(len(series))
    frames = [mapped(metrics.artefact_file(run)) for run in series]
    last, points = max(int(frame["round"].max()) for frame in frames), None
    for axis, run, frame in zip(axes, series, frames, strict=True):
        shade = {"c": frame["round"], "cmap": "viridis", "vmin": 0, "vmax": last}
        points = axis.scatter(frame["x"], frame["y"], s=6, linewidth=0, alpha=0.7, **shade)
        centre = frame.groupby("round")[["x", "y"]].mean()
        axis.plot(centre["x"], centre["y"], "--", color=PATH, zorder=3)
        marks = {"color": CENTRE, "edgecolor": "black", "linewidth": 0.5, "zorder": 4}
        axis.scatter(centre["x"], centre["y"], marker="^", s=28, label="Centroid", **marks)
        style.map_axes(axis)
        axis.set_title(style.name(run, series, (*style.SCENARIO, "title")) or run.title)
    if points is not None:
        ticks = MaxNLocator(integer=True)
        figure.colorbar(points, ax=axes, label="Round", shrink=0.8, ticks=ticks)
    style.legend(figure, axes)
    return figure
