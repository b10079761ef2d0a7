"""Draw t-SNE maps of prompts and of class tokens, the same on every call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt
from fedloom.common.schema import Count, Several
from fedloom.config.output_kinds import FigureKind, RunsFigure, Superclasses, with_superclasses
from fedloom.config.settings import Output, Settings
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.report.figures.line_style import MARKERS
from fedloom.report.tables.clustering import superclasses_of
from fedloom.study.plot_inputs import PlottedBackbone, PlottedRun

if TYPE_CHECKING:
    from matplotlib.collections import PathCollection

PERPLEXITY = 30
POINTS = 2000  # per panel; t-SNE of more takes minutes and shows no more
BLOCK = (2.6, 2.5)  # inches of a panel of one block
CENTRE, PATH = "#E69F00", "#D55E00"
DOMAIN = "domain"  # gid of the legend's entries that name a domain


def evenly(count: int) -> np.ndarray:
    """Return the positions of at most POINTS of `count` rows, evenly spaced."""
    return np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)


def embed(rows: np.ndarray | pd.Series, where: Path | str | None) -> np.ndarray:
    """Map N vectors of width d to points [N, 2]; the perplexity is 30, less for few vectors.

    Raises:
        FedLoomError: fewer than four vectors, or one that is not finite; names `where`.
    """
    if len(rows) < 4:
        raise FedLoomError(f"{where}: t-SNE needs at least 4 vectors, found {len(rows)}")
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    vectors = np.stack(list(rows))  # [N, d]
    if not np.isfinite(vectors).all():
        raise FedLoomError(f"{where}: a vector is not finite")
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    start = "pca" if vectors.shape[1] > 1 and np.ptp(vectors, axis=0).any() else "random"
    # the rule has one thread; more of them that share cores with other jobs take many times longer
    with threadpool_limits(1):
        return TSNE(perplexity=perplexity, init=start, random_state=0).fit_transform(vectors)


def _frame(axis: style.Axes) -> None:
    """Draw a frame without ticks: distances in a map have no unit."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(visible=True, color="#999999")


class PromptTsne(RunsFigure):
    """t-SNE of the trained class prompts, a point per class, first seed (PEP-FedPT Fig. 7)."""

    artefact_name = "class_prompts"
    first_seed = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per run, a point per class, in the colour of the method."""
        figure, axes = style.by_run(series)
        for axis, run in zip(axes, series, strict=True):
            frame = metrics.artefact(run).sort_values("class")
            points = embed(frame["vector"], run.artefact)
            axis.scatter(
                *points.T, s=12, color=run.style.colour, marker=run.style.marker, linewidth=0
            )
            text = {"textcoords": "offset points", "fontsize": 6, "color": "#444444"}
            for label, point in zip(frame["class"], points, strict=True):
                axis.annotate(str(label), point, (3, 2), **text)
            axis.margins(0.1)
            _frame(axis)
        return figure


class PromptPath(RunsFigure):
    """t-SNE of the server's prompts of several rounds, in one map (PFPT Fig. 3, 5).

    Triangles are the centroids of a round's prompts, the dashed line their path. First seed.
    """

    artefact_name = "prompt_history"
    first_seed = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per run, all its rounds in one map; a triangle at every round's centroid."""
        from matplotlib.ticker import MaxNLocator

        figure, axes = style.by_run(series)
        frames = [mapped(run) for run in series]
        last = max(int(frame["round"].max()) for frame in frames)
        scale = style.shades(0, last)
        for axis, frame in zip(axes, frames, strict=True):
            shade = {"c": frame["round"], "cmap": "viridis", "norm": scale.norm}
            axis.scatter(frame["x"], frame["y"], s=6, linewidth=0, alpha=0.7, **shade)
            centre = frame.groupby("round")[["x", "y"]].mean()
            axis.plot(centre["x"], centre["y"], "--", color=PATH, zorder=3)
            marks = {"color": CENTRE, "edgecolor": "black", "linewidth": 0.5, "zorder": 4}
            axis.scatter(centre["x"], centre["y"], marker="^", s=28, label="Centroid", **marks)
            _frame(axis)
        ticks = MaxNLocator(integer=True)
        figure.colorbar(scale, ax=axes, label="Round", shrink=0.8, ticks=ticks, alpha=0.7)
        style.legend(figure, axes)
        return figure


def mapped(run: PlottedRun) -> pd.DataFrame:
    """Return `round`, `x` and `y` of a run's prompts of all rounds, in one t-SNE map."""
    frame = metrics.artefact(run).sort_values("round", kind="stable")
    frame = frame.iloc[evenly(len(frame))]
    x, y = embed(frame["vector"], run.artefact).T
    return pd.DataFrame({"round": frame["round"].to_numpy(), "x": x, "y": y})


class BackboneTsne(FigureKind):
    """t-SNE of the frozen backbone's class tokens of test images, by block (SGPT Fig. 5).

    Colours are superclasses. Nothing is trained.
    """

    shows = "backbones"
    reads = "features"

    blocks: Several[Count]
    """At whose input, counted from 1; the number of blocks plus 1 is the output."""
    superclasses: Superclasses | None = None

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the output with the superclass of every class."""
        return with_superclasses(self.superclasses, output, where)

    def draw(
        self, series: list[PlottedBackbone], superclass_of: dict[str, str] | None = None
    ) -> style.Figure:
        """Draw a row per dataset and backbone, a panel per block, all of the same test images.

        Colours are superclasses, or classes where the figure names no file of superclasses.
        """
        from fedloom.data.store import ImageStore  # slow to import, as torch is
        from fedloom.report.block_accuracy import class_tokens, depth

        figure, axes = style.grid(len(series), len(self.blocks), BLOCK)
        for row, item in zip(axes, series, strict=True):
            store, classes = ImageStore(item.store), read_receipt(item.store)["classes"]
            images = np.flatnonzero(store.test)
            images = images[evenly(len(images))]
            names = pd.Series([str(classes[label]) for label in store.labels[images]])
            if superclass_of is not None:
                names = superclasses_of(names, superclass_of, self.superclasses)
            for axis, block in zip(row, self.blocks, strict=True):
                tokens = class_tokens(item.features, block)[images].numpy()
                _scatter_names(axis, embed(tokens, item.features), names.to_numpy())
                output = depth(item.features) + 1
                axis.set_title("Output" if block == output else f"Input of block {block}")
            row[0].set_ylabel(style.name(item, series, style.BACKBONE).replace(", ", "\n"))
        style.legend(figure, list(axes.flat))
        return figure


def _scatter_names(axis: style.Axes, points: np.ndarray, names: np.ndarray) -> None:
    """Scatter points [n, 2] in the colours of their names; a legend has few names."""
    from matplotlib import colormaps

    each = sorted(set(names.tolist()))
    few, shades = len(each) <= style.NAMED, colormaps["viridis"].resampled(len(each))
    for number, name in enumerate(each):
        look = style.of_class(number) if few else {"color": shades(number), "linewidth": 0}
        label = style.legend_text(name) if few else None
        axis.scatter(*points[names == name].T, s=7, label=label, **look)
    _frame(axis)


class TokenTsne(RunsFigure):
    """t-SNE of test images' class tokens by block, first seed (PEP-FedPT Fig. 10).

    Colours are classes, markers domains.
    """

    artefact_name = "class_tokens"
    reads = "names"
    first_seed = True

    blocks: Several[Count]
    """At whose input, counted from 1; the number of blocks plus 1 is the output."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a row per run, a panel per block; colours are classes, markers are domains.

        Raises:
            FedLoomError: the network does not have one of the blocks.
        """
        figure, axes = style.grid(len(series), len(self.blocks), BLOCK)
        image = None
        for row, run in zip(axes, series, strict=True):
            frame, names = metrics.artefact(run), metrics.class_names(run)
            first, last = frame["block"].min(), frame["block"].max()
            for axis, block in zip(row, self.blocks, strict=True):
                tokens = frame[frame["block"] == block]
                if tokens.empty:
                    line = f"{run.artefact}: no block {block}; it has {first} to {last}"
                    raise FedLoomError(line)
                tokens = tokens.iloc[evenly(len(tokens))]
                points = embed(tokens["vector"], run.artefact)
                image = _scatter_tokens(axis, points, tokens, names)
                axis.set_title("Output" if block == last else f"Input of block {block}")
            row[0].set_ylabel(style.run_name(run, series).replace(", ", "\n"))
        if image is not None:
            figure.colorbar(image, ax=axes, label="Class", shrink=0.8)
        _legends(figure, list(axes.flat))
        return figure


def _scatter_tokens(
    axis: style.Axes, points: np.ndarray, frame: pd.DataFrame, classes: list[str]
) -> PathCollection | None:
    """Scatter one block; return what a colour bar needs, None if the legend names the classes."""
    labels, domains = frame["label"].to_numpy(), frame["domain"].fillna("").to_numpy()
    few, image = len(classes) <= style.NAMED, None
    names = sorted(set(domains))
    markers = {name: MARKERS[number % len(MARKERS)] for number, name in enumerate(names)}
    for domain, marker in markers.items():
        here = domains == domain
        for c in sorted(set(labels[here])) if few else []:
            of = here & (labels == c)
            axis.scatter(*points[of].T, s=9, marker=marker, **style.of_class(c))
        if not few:
            shade: dict[str, Any] = {"c": labels[here], "vmin": 0, "vmax": len(classes) - 1}
            image = axis.scatter(*points[here].T, s=7, linewidth=0, marker=marker, **shade)
    for c in sorted(set(labels)) if few else []:
        label = style.legend_text(classes[c])
        axis.scatter([], [], s=14, label=label, **style.of_class(c))
    for domain, marker in markers.items() if len(markers) > 1 else ():
        label = style.legend_text(domain)
        axis.scatter([], [], color="#777777", s=14, label=label, marker=marker, gid=DOMAIN)
    _frame(axis)
    return image


def _legends(figure: style.Figure, axes: Sequence[style.Axes]) -> None:
    """Name the classes above the panels and the domains below, each once."""
    classes, domains = {}, {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
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
