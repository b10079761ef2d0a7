"""Draw what the frozen backbone's class token tells of an image, by block (SGPT, Fig. 5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt
from fedloom.common.schema import Count, Several
from fedloom.config.output_kinds import FigureKind, Superclasses, with_superclasses
from fedloom.config.settings import Output, Settings
from fedloom.data.store import ImageStore
from fedloom.report.figures import style
from fedloom.report.figures.tsne import POINTS, embed
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownBackbone

KEYS = ("dataset", "backbone")


class BackboneTsne(FigureKind):
    """t-SNE of the frozen backbone's class tokens, by block (SGPT Fig. 5)."""

    shows = "backbones"
    reads = "features"
    caption = (
        "t-SNE of the frozen backbone's class tokens of test images, at the input of blocks; "
        "colours are superclasses. Nothing is trained."
    )

    blocks: Several[Count]
    """At whose input, counted from 1; the number of blocks plus 1 is the output."""
    superclasses: Superclasses | None = None

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the output with the superclass of every class."""
        return with_superclasses(self.superclasses, output, where)


def groups(labels: np.ndarray, store: Path, job: FigureJob) -> np.ndarray:
    """Return the superclass [n] of every label, or its class where the figure names no file.

    Args:
        store: the dataset's images, whose receipt has the names of the classes.

    Raises:
        FedLoomError: a class has no superclass.
    """
    classes = read_receipt(store)["classes"]
    names = [str(classes[label]) for label in labels]
    if "superclass_of" not in job.settings:
        return np.array(names)
    superclass_of = job.settings["superclass_of"]
    missing = sorted(set(names) - superclass_of.keys())
    if missing:
        line = f"{job.settings['superclasses']}: no superclass for class '{missing[0]}'"
        raise FedLoomError(line)
    return np.array([superclass_of[name] for name in names])


def draw(series: list[ShownBackbone], job: FigureJob) -> style.Figure:
    """Draw a row per dataset and backbone, a panel per block; colours are superclasses.

    Test images are drawn, 2000 of them at most, the same in all panels.
    """
    from fedloom.report.block_accuracy import class_tokens, depth  # which imports torch

    blocks = job.settings["blocks"]
    figure, axes = style.grid(len(series), len(blocks), (2.6, 2.5))
    for row, item in zip(axes, series, strict=True):
        store = ImageStore(item.store)
        images = np.flatnonzero(store.test)
        if len(images) > POINTS:
            images = images[np.linspace(0, len(images) - 1, POINTS).round().astype(int)]
        labels = groups(store.labels[images], item.store, job)
        for axis, block in zip(row, blocks, strict=True):
            tokens = class_tokens(item.features, block)[images].numpy()
            points = embed(list(tokens), item.features)
            _panel(axis, points, labels)
            output = block == depth(item.features) + 1
            axis.set_title("Output" if output else f"Input of block {block}")
        row[0].set_ylabel(style.name(item, series, KEYS).replace(", ", "\n"))
    style.legend(figure, list(axes.flat))
    return figure


def _panel(axis: style.Axes, points: np.ndarray, labels: np.ndarray) -> None:
    """Scatter points [n, 2] in the colours of their labels; few labels are named in a legend."""
    from matplotlib import colormaps

    names = sorted(set(labels.tolist()))
    few = len(names) <= style.NAMED
    shades = colormaps["viridis"].resampled(len(names))
    for number, name in enumerate(names):
        look = style.of_class(number) if few else {"color": shades(number), "linewidth": 0}
        label = style.legend_text(name) if few else None
        axis.scatter(*points[labels == name].T, s=7, label=label, **look)
    style.map_axes(axis)
