"""Draw t-SNE maps of prompts and of class tokens; equal vectors give equal maps."""

from __future__ import annotations

from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import KeyPath
from fedloom.common.receipts import read_receipt
from fedloom.common.schema import Count, Several
from fedloom.config.output_kinds import FigureKind, RunsFigure, Superclasses, with_superclasses
from fedloom.config.settings import KindSpec, OutputEntry, Settings
from fedloom.report import metrics
from fedloom.report.figures import chosen_panels, style
from fedloom.report.plotted_runs import PlottedBackbone, PlottedRun
from fedloom.report.tables.clustering import find_superclasses

if TYPE_CHECKING:
    from matplotlib.collections import PathCollection

# the most points of a panel; t-SNE of more takes minutes and shows no more
POINTS = 2000
# inches of a panel of one block
BLOCK = (2.6, 2.5)
# panels without ticks, since distances have no unit
MAP_PANEL: style.Keywords = {"subplot_kw": {"xticks": [], "yticks": []}}


def evenly(count: int) -> np.ndarray:
    """Return the positions of evenly spaced rows: at most POINTS of `count` rows."""
    return np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)


def embed(rows: np.ndarray | pd.Series, where: Path | str | None) -> np.ndarray:
    """Map N vectors of width d to points [N, 2] by t-SNE; perplexity 30, or less for few vectors.

    Raises a FedLoomError, which names the place `where`, if there are fewer than 4 vectors, or if
    not all numbers are finite.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    vectors = np.stack(list(rows))  # [N, d]
    if len(vectors) < 4 or not np.isfinite(vectors).all():
        raise FedLoomError(f"{where}: t-SNE needs at least 4 vectors, all of finite numbers")

    # PCA gives a start only if vectors have two numbers or more, and are not all equal
    perplexity = min(30, (len(vectors) - 1) / 3)
    start = "random"
    if vectors.shape[1] > 1 and np.ptp(vectors, axis=0).any():
        start = "pca"

    # the rule asks for one thread; if more threads share cores with other jobs, t-SNE takes many
    # times longer
    with threadpool_limits(1):
        return TSNE(perplexity=perplexity, init=start, random_state=0).fit_transform(vectors)


class PromptTsne(RunsFigure):
    """t-SNE of the trained class prompts, a point per class; first seed (PEP-FedPT Fig. 7).

    There is a panel per run, of at most nine runs: of more, evenly spaced ones are shown.
    """

    spec = KindSpec(artefact="class_prompts", first_seed=True)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        shown = chosen_panels.evenly(series)
        figure, axes = style.by_run(shown, **MAP_PANEL)
        for axis, run in zip(axes, shown, strict=True):
            frame = metrics.artefact(run).sort_values("class")
            points = embed(frame["vector"], run.artefact)
            look = {"color": run.style.colour, "marker": run.style.marker}
            axis.scatter(*points.T, s=12, linewidth=0, **look)

            for label, point in zip(frame["class"], points, strict=True):
                axis.annotate(str(label), point, (3, 2), textcoords="offset points", fontsize=6)
            axis.margins(0.1)
        counts = {"runs": (len(shown), len(series))}
        chosen_panels.say_left_out(figure, counts)
        return figure


class PromptPath(RunsFigure):
    """t-SNE of the server's prompts after several rounds, in one map per run (PFPT Fig. 3, 5).

    A triangle is the centroid of the prompts of a round, and a dashed line connects the triangles.
    Runs are those of the first seed: at most nine, and of more, evenly spaced ones.
    """

    spec = KindSpec(artefact="prompt_history", first_seed=True)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        shown = chosen_panels.evenly(series)
        figure, axes = style.by_run(shown, **MAP_PANEL)
        frames = [embedding_frame(run) for run in shown]
        scale = style.shades(0, max(int(frame["round"].max()) for frame in frames))
        for axis, frame in zip(axes, frames, strict=True):
            # every prompt in the colour of its round
            shade = {"c": frame["round"], "norm": scale.norm, "alpha": 0.7}
            axis.scatter(frame["x"], frame["y"], s=6, linewidth=0, **shade)

            centre = frame.groupby("round")[["x", "y"]].mean()
            marks: style.Keywords = {"marker": "^", "mfc": "#E69F00", "mec": "black"}
            axis.plot(centre["x"], centre["y"], "--", color="#D55E00", label="Centroid", **marks)

        figure.colorbar(scale, ax=axes, label="Round", shrink=0.8, alpha=0.7)
        style.legend(figure, axes)
        chosen_panels.say_left_out(figure, {"runs": (len(shown), len(series))})
        return figure


def embedding_frame(run: PlottedRun) -> pd.DataFrame:
    """Return a row per prompt, with its `round` and its place `x`, `y` in one map of all rounds."""
    frame = metrics.artefact(run).sort_values("round", kind="stable")
    frame = frame.iloc[evenly(len(frame))]
    x, y = embed(frame["vector"], run.artefact).T
    return pd.DataFrame({"round": frame["round"].to_numpy(), "x": x, "y": y})


class BackboneTsne(FigureKind):
    """t-SNE of the frozen backbone's class tokens of test images, by block (SGPT Fig. 5).

    Colours show superclasses, or classes if `superclasses` is not set. Nothing is trained. There
    are at most nine panels: of more blocks and backbones, evenly spaced ones are shown, and three
    blocks before a backbone is left out.
    """

    spec = KindSpec(shows="backbones", reads="features")

    blocks: Several[Count]
    """Blocks to plot, counted from 1. Tokens are taken at a block's input; the number of blocks
    plus 1 means the final output."""
    superclasses: Superclasses | None = None

    def complete(self, settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
        """Return the output with the superclass of every class."""
        return with_superclasses(self.superclasses, output, where)

    def draw(
        self, series: list[PlottedBackbone], superclass_of: dict[str, str] | None = None
    ) -> style.Figure:
        """Draw a row per dataset and backbone, a panel per block, all of the same test images.

        Colours are superclasses, or classes where the figure names no file of superclasses.
        """
        # imported here, because torch is slow to import
        from fedloom.data.store import ImageStore
        from fedloom.report.block_accuracy import class_tokens, depth

        blocks = chosen_panels.choose_columns(self.blocks, len(series))
        items = chosen_panels.choose_rows(series, len(blocks))
        figure, axes = style.wrapped_grid(len(items), len(blocks), BLOCK, **MAP_PANEL)
        for row, item in zip(axes, items, strict=True):
            # the test images that all panels of the row show
            store = ImageStore(item.store)
            images = np.flatnonzero(store.test)
            images = images[evenly(len(images))]

            # their classes or superclasses, as names and as numbers
            classes = read_receipt(item.store)["classes"]
            names = pd.Series([str(classes[label]) for label in store.labels[images]])
            if superclass_of is not None:
                names = find_superclasses(names, superclass_of, self.superclasses)
            numbers, each = pd.factorize(names, sort=True)

            for axis, block in zip(row, blocks, strict=True):
                tokens = class_tokens(item.features, block)[images].numpy()
                _scatter(axis, embed(tokens, item.features), numbers, list(each))
                axis.set_title(_title(block, depth(item.features) + 1))
            row[0].set_ylabel(style.name(item, series, style.BACKBONE).replace(", ", "\n"))
        style.legend(figure, list(chain.from_iterable(axes)))
        counts = {
            "backbones": (len(items), len(series)),
            "blocks": (len(blocks), len(self.blocks)),
        }
        chosen_panels.say_left_out(figure, counts)
        return figure


class TokenTsne(RunsFigure):
    """t-SNE of test images' class tokens by block, first seed (PEP-FedPT Fig. 10).

    Colours show classes, and markers show domains. There are at most nine panels: of more blocks
    and runs, evenly spaced ones are shown, and three blocks before a run is left out.
    """

    spec = KindSpec(artefact="class_tokens", reads="names", first_seed=True)

    blocks: Several[Count]
    """Blocks to plot, counted from 1. Tokens are taken at a block's input; the number of blocks
    plus 1 means the final output."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        blocks = chosen_panels.choose_columns(self.blocks, len(series))
        runs = chosen_panels.choose_rows(series, len(blocks))
        figure, axes = style.wrapped_grid(len(runs), len(blocks), BLOCK, **MAP_PANEL)
        image = None
        for row, run in zip(axes, runs, strict=True):
            frame = metrics.artefact(run)
            names = metrics.class_names(run)
            last = frame["block"].max()
            for axis, block in zip(row, blocks, strict=True):
                tokens = frame[frame["block"] == block]
                if tokens.empty:
                    raise FedLoomError(f"{run.artefact}: no block {block}; the last is {last}")

                tokens = tokens.iloc[evenly(len(tokens))]
                points = embed(tokens["vector"], run.artefact)
                image = _scatter(axis, points, tokens["label"], names, tokens["domain"].fillna(""))
                axis.set_title(_title(block, last))
            row[0].set_ylabel(style.run_name(run, series).replace(", ", "\n"))

        # the names of many classes are numbers beside a colour bar
        every_panel = list(chain.from_iterable(axes))
        if image is not None:
            figure.colorbar(image, ax=every_panel, label="Class", shrink=0.8)
        style.legend(figure, every_panel)
        counts = {"runs": (len(runs), len(series)), "blocks": (len(blocks), len(self.blocks))}
        chosen_panels.say_left_out(figure, counts)
        return figure


def _title(block: int, last: int) -> str:
    """Return the title of a block's panel; the number `last` stands for the final output."""
    if block == last:
        return "Output"
    return f"Input of block {block}"


def _scatter(
    axis: style.Axes,
    points: np.ndarray,
    numbers: np.ndarray | pd.Series,
    names: list[str],
    domains: pd.Series | str = "",
) -> PathCollection | None:
    """Scatter points in a panel, with a colour per class and a marker per domain.

    Args:
        axis: the panel.
        points: their places, [n, 2].
        numbers: their classes as positions in `names`, [n].
        names: the names of all classes.
        domains: their domains, [n].

    Returns:
        What a colour bar needs, or None if there are few classes, which the legend names.
    """
    frame = pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "c": np.asarray(numbers)})
    frame["domain"] = np.asarray(domains)

    image = None
    several = frame["domain"].nunique() > 1
    for marker, (domain, part) in zip(cycle(style.MARKERS), frame.groupby("domain")):
        # many classes have colours of one scale, few have a colour and a name each
        if len(names) > style.MOST_CLASS_COLOURS:
            shade = {"c": part["c"], "vmin": 0, "vmax": len(names) - 1, "linewidth": 0}
            image = axis.scatter(part["x"], part["y"], s=7, marker=marker, **shade)
        else:
            for c in sorted(set(part["c"])):
                own = part[part["c"] == c]
                look = style.of_class(c)
                look["label"] = style.legend_text(names[c])
                axis.scatter(own["x"], own["y"], s=9, marker=marker, **look)

        # the marker of the domain, in the legend alone
        if several:
            axis.scatter([], [], color="#777777", marker=marker, label=f"domain {domain}")
    return image
