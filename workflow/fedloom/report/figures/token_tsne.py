"""Draw what the class token tells of an image at which depth (PEP-FedPT, Fig. 10)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Count, Several
from fedloom.config.line_style import MARKERS
from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.report.figures.tsne import embed, sample
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

DOMAIN = "domain"  # gid of the legend's entries that name a domain


class TokenTsne(RunsFigure):
    """t-SNE of test images' class tokens by block, first seed (PEP-FedPT Fig. 10)."""

    artefact_name = "class_tokens"
    reads = "names"
    first_seed = True
    caption = (
        "t-SNE of the class tokens of test images by depth; colours are classes, markers "
        "domains. First seed."
    )

    blocks: Several[Count]
    """At whose input, counted from 1; the number of blocks plus 1 is the output."""


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a row per run, a panel per block; colours are classes, markers are domains.

    Raises:
        FedLoomError: a block that the network does not have.
    """
    blocks = job.settings["blocks"]
    figure, axes = style.grid(len(series), len(blocks), (2.6, 2.5))
    image = None
    for row, run in zip(axes, series, strict=True):
        frame, path = metrics.artefact(run), metrics.artefact_file(run)
        known, names = sorted(frame["block"].unique().tolist()), metrics.class_names(run)
        for axis, block in zip(row, blocks, strict=True):
            if block not in known:
                line = f"{path}: no block {block}; it has {known[0]} to {known[-1]}"
                raise FedLoomError(line)
            image = _panel(axis, sample(frame[frame["block"] == block]), names, path)
            output = block == known[-1]
            axis.set_title("Output" if output else f"Input of block {block}")
        row[0].set_ylabel(style.name(run, series, (*style.SCENARIO, "title")).replace(", ", "\n"))
    if image is not None:
        figure.colorbar(image, ax=axes, label="Class", shrink=0.8)
    _legend(figure, [axis.get_legend_handles_labels() for axis in axes.flat])
    return figure


def _panel(
    axis: Axes, frame: pd.DataFrame, classes: list[str], path: Path
) -> PathCollection | None:
    """Scatter one block; return what a colour bar needs, None if the legend names the classes."""
    points = embed(frame["vector"], path)
    labels, domains = frame["label"].to_numpy(), frame["domain"].fillna("").to_numpy()
    few, image = len(classes) <= style.NAMED, None
    names = sorted(set(domains))
    for number, domain in enumerate(names):
        here, marker = domains == domain, MARKERS[number % len(MARKERS)]
        for c in sorted(set(labels[here])) if few else []:
            of = here & (labels == c)
            axis.scatter(*points[of].T, s=9, marker=marker, **style.of_class(c))
        if not few:
            shade: dict[str, Any] = {"c": labels[here], "vmin": 0, "vmax": len(classes) - 1}
            image = axis.scatter(*points[here].T, s=7, linewidth=0, marker=marker, **shade)
    for c in sorted(set(labels)) if few else []:
        label = style.legend_text(classes[c])
        axis.scatter([], [], s=14, label=label, **style.of_class(c))
    for number, domain in enumerate(names if len(names) > 1 else []):
        marker, label = MARKERS[number % len(MARKERS)], style.legend_text(domain)
        axis.scatter([], [], color="#777777", s=14, label=label, marker=marker, gid=DOMAIN)
    style.map_axes(axis)
    return image


def _legend(figure: Figure, entries: list[tuple[list, list]]) -> None:
    """Name the classes above the panels and the domains below, each once."""
    classes, domains = {}, {}
    for handles, labels in entries:
        for handle, label in zip(handles, labels, strict=True):
            (domains if handle.get_gid() == DOMAIN else classes).setdefault(label, handle)
    look: dict[str, Any] = {"handlelength": 0.8, "columnspacing": 1.2}
    width, height = map(float, figure.get_size_inches())
    for items, place in ((classes, "upper"), (domains, "lower")):
        look["loc"] = f"outside {place} center"
        for across in range(min(10, len(items)), 0, -1):
            drawn = figure.legend(list(items.values()), list(items), ncols=across, **look)
            room = drawn.get_window_extent()
            if across == 1 or room.width <= width * figure.dpi:
                height += room.height / figure.dpi
                break
            drawn.remove()
    figure.set_size_inches(width, height)
