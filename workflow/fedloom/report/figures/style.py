"""One look for all figures; a method's own colour and marker come with its run.

A plan imports the kinds of figures for their keys: matplotlib is imported where it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.common.io import replacing
from fedloom.report.metrics import SCENARIO, grouped
from fedloom.study.plot_inputs import LineStyle, PlottedBackbone, PlottedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
HATCHES = ("", "//", "..", "xx", "\\\\")  # of bars, which have no lines
# Paul Tol's "muted" and black: ten classes told apart with any colour vision
CLASSES = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677",
    "#AA4499", "#44AA99", "#999933", "#882255", "#000000",
)  # fmt: skip
NAMED = 2 * len(CLASSES)  # classes that are told apart: as many again are hollow
LOOK = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.handlelength": 3,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # text stays text
    "text.parse_math": False,  # a label such as "$x_{$" stays as it is
    "savefig.dpi": 400,
    "figure.constrained_layout.use": True,
}
# dates and versions would make every run's files differ
METADATA = {"pdf": {"CreationDate": None, "Producer": None}, "png": {"Software": None}}
SLANTED = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}  # names below an axis
PANEL = (3.2, 2.5)  # inches
BESIDE, ROWS = 6, 3  # labels that still go above the panels, and rows of them
BACKBONE = ("dataset", "backbone")


@contextmanager
def applied() -> Iterator[None]:
    """Apply the look within the block, whatever the user's own matplotlibrc says."""
    import matplotlib

    matplotlib.use("Agg")  # before pyplot is imported: a cluster's node has no display
    import matplotlib.pyplot as plt

    with plt.style.context(["default", LOOK]):
        yield
    plt.close("all")


def of_method(style: LineStyle) -> dict:
    """Return colour, line and marker of a method, for Axes.plot."""
    return {"color": style.colour, "linestyle": LINES[style.line], "marker": style.marker}


def of_run(run: PlottedRun) -> dict:
    """Return the look of a run's method and its name in the legend."""
    return of_method(run.style) | {"label": legend_text(run.title)}


def of_class(number: int) -> dict:
    """Return fill and edge of a class below NAMED, for Axes.scatter."""
    colour = CLASSES[number % len(CLASSES)]
    fill = colour if number < len(CLASSES) else "white"
    return {"facecolor": fill, "edgecolor": colour, "linewidth": 0.8}


def grid(
    rows: int, columns: int, size: tuple[float, float] = PANEL, projection: str | None = None
) -> tuple[Figure, np.ndarray]:
    """Return a figure and its panels, Axes [rows, columns], of `size` inches each."""
    import matplotlib.pyplot as plt

    inches, look = (size[0] * columns, size[1] * rows), {"projection": projection}
    return plt.subplots(rows, columns, figsize=inches, squeeze=False, subplot_kw=look)


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels, at most three in a row."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    figure, axes = grid(rows, columns)
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, list(axes.flat[:count])


def name(
    item: PlottedRun | PlottedBackbone,
    series: Sequence[PlottedRun | PlottedBackbone],
    keys: tuple[str, ...] = SCENARIO,
) -> str:
    """Return what tells `item` apart from the other series, e.g. "pathological, micro_vit"."""
    return ", ".join(
        getattr(item, key) for key in keys if len({getattr(other, key) for other in series}) > 1
    )


def run_name(run: PlottedRun, series: Sequence[PlottedRun]) -> str:
    """Return what tells a run apart from the other series, the method too."""
    return name(run, series, (*SCENARIO, "title"))


def by_run(series: Sequence[PlottedRun]) -> tuple[Figure, list[Axes]]:
    """Return a figure and a panel per run, with what tells it apart, or its method, as title."""
    figure, axes = panels(len(series))
    for axis, run in zip(axes, series, strict=True):
        axis.set_title(run_name(run, series) or run.title)
    return figure, axes


def by_scenario(
    series: Sequence[PlottedRun],
    draw: Callable[[Axes, list[PlottedRun]], None],
    label: str,
    keys: tuple[str, ...] = SCENARIO,
) -> Figure:
    """Draw a panel with a title for the runs of each of `keys`, and a legend for all panels.

    Args:
        label: of the y axes.
    """
    groups = grouped(series, keys)
    figure, axes = panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        draw(axis, runs)
        axis.set_title(name(runs[0], series, keys))
    left_label(axes, label)
    legend(figure, axes)
    return figure


def legend_text(text: str) -> str:
    """Return a label that matplotlib shows: it leaves out those that begin with an underscore."""
    return f" {text}" if text.startswith("_") else text


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend, each label once: above the panels, or beside them if there is no room."""
    labels = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    shown = list(labels.values()), list(labels)
    width, height = map(float, figure.get_size_inches())
    for across in range(min(4, len(labels)), 0, -1):
        if len(labels) > min(BESIDE, ROWS * across):
            break
        drawn = figure.legend(*shown, loc="outside upper center", ncols=across)
        if drawn.get_window_extent().width <= width * figure.dpi:
            return
        drawn.remove()
    if labels:
        drawn = figure.legend(*shown, loc="outside right upper")
        room = drawn.get_window_extent()
        wide, high = (float(size) / figure.dpi + 0.1 for size in (room.width, room.height))
        figure.set_size_inches(width + wide, max(height, high))


def shades(low: float, high: float, name: str = "viridis") -> ScalarMappable:
    """Return the colours of the numbers from `low` to `high`, as a colour bar takes them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), name)


def log_scale(axis: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers, also where it spans less than a decade.

    Ticks are round numbers below 5-fold, 1, 2 and 5 below 100-fold, else powers of ten.
    """
    from matplotlib.ticker import Locator, LogLocator, MaxNLocator

    class Few(Locator):
        def __call__(self) -> np.ndarray:
            return self.tick_values(*axis.get_ylim())

        def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
            fold = vmax / vmin
            of_ten = LogLocator(subs=(1, 2, 5) if fold < 100 else (1,))
            ticks = np.array((MaxNLocator(5) if fold < 5 else of_ten).tick_values(vmin, vmax))
            return ticks[(ticks >= vmin) & (ticks <= vmax)]

    axis.set_yscale("log")
    axis.minorticks_off()
    axis.yaxis.set(major_locator=Few(), major_formatter="{x:g}")


def whole_numbers(axis: Axes) -> None:
    """Put the ticks of the x axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def left_label(axes: Sequence[Axes], text: str) -> None:
    """Label the y axis of the first panel of every row."""
    for axis in axes:
        place = axis.get_subplotspec()
        if place is not None and place.is_first_col():
            axis.set_ylabel(text)


def save(figure: Figure, outputs: dict[str, Path]) -> None:
    """Write every format; equal figures give equal bytes."""
    for kind, path in outputs.items():
        with replacing(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=METADATA[kind])
