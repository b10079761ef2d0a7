"""Give all figures one look; the colour and marker of a method come with its run.

A plan imports the kinds of figures only for their keys. Therefore matplotlib is imported inside the
functions that draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.common.files import atomic_write
from fedloom.report.figures import greys, paper
from fedloom.report.metrics import SCENARIO, grouped
from fedloom.report.plotted_runs import LineStyle, PlottedBackbone, PlottedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

# keyword arguments of a function of matplotlib's, each of a type of its own
Keywords = dict[str, Any]
# Okabe and Ito's colours can be told apart with any colour vision; their yellow is left out, since
# it is too pale on white
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# 7 and 8 have no common divisor: every pair comes once, and neighbours differ in colour and marker
PAIRS = tuple((LINE_COLOURS[k % 7], MARKERS[k % 8]) for k in range(7 * 8))
LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
# the size of small lines in points, and the number of their letters that surely fit into an inch
SMALL = 7
SMALL_LETTERS_PER_INCH = 16
# the most panels in a row, unless a figure's rows have a meaning
MOST_IN_A_ROW = 3
# the fill patterns of bars, as many as a figure has rows that grey print can tell apart
HATCHES = (
    "", "////", "....", "xxxx", "\\\\\\\\", "-----", "||||", "ooo", "++++", "//////..", "OO", "**",
)  # fmt: skip
# Paul Tol's "muted" colours and black: ten classes can be told apart with any colour vision
CLASS_COLOURS = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677",
    "#AA4499", "#44AA99", "#999933", "#882255", "#000000",
)  # fmt: skip
# the most classes that can be told apart: each colour is used for a filled and a hollow marker
MOST_CLASS_COLOURS = 2 * len(CLASS_COLOURS)
LOOK = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.labelsize": 9,
    "errorbar.capsize": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.handlelength": 3,
    "lines.markersize": 4,
    # thin enough for the narrow bars of many methods
    "hatch.linewidth": 0.6,
    # a PDF holds text as text
    "pdf.fonttype": 42,
    # a label such as "$x_{$" is shown as it is
    "text.parse_math": False,
    "savefig.dpi": 400,
    "figure.constrained_layout.use": True,
}
# without dates and versions, equal figures give equal files
METADATA = {"pdf": {"CreationDate": None, "Producer": None}, "png": {"Software": None}}
# the look of long names below an axis
SLANTED = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
# inches of a panel
PANEL = (3.2, 2.5)
# the labels of a frozen backbone
BACKBONE = ("dataset", "backbone")


@contextmanager
def house_style(more: Keywords | None = None) -> Iterator[None]:
    """Apply the look within the block, whatever the user's own matplotlibrc says.

    `more` are further settings of matplotlib.
    """
    import matplotlib

    # before pyplot is imported: a cluster's node has no display
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.style.context(["default", LOOK | (more or {})]):
        yield
    plt.close("all")


def with_styles(runs: Sequence[PlottedRun]) -> list[PlottedRun]:
    """Return the runs of a figure, each with the line style of its method."""
    looks = {run.method: run.look for run in runs}
    styles = dict(zip(looks, assign_styles(list(looks.values())), strict=True))
    return [replace(run, style=styles[run.method]) for run in runs]


def assign_styles(wishes: Sequence[Mapping[str, str]]) -> list[LineStyle]:
    """Return the line styles of a figure's rows, in their order: no two look alike.

    The first row that wishes a pair (`colour` and `marker`) gets it. All other rows take, in this
    order of preference: the least used pair, the wished colour (so that the labels of one plugin
    share it), the wished marker, the rarest colour, the rarest marker. Rows of one colour also
    differ by their lines. In grey print, rows of close greys differ by marker or line, and their
    bars by the hatch, as long as there are enough lines and hatches.
    """
    asked = [(str(w.get("colour", "")).upper(), str(w.get("marker", ""))) for w in wishes]
    firsts = {asked.index(wish) for wish in asked if all(wish)}

    # first the rows that get the pair for which they ask, then all other rows
    dealt: dict[int, tuple[str, str]] = {}
    used: Counter[str | tuple[str, str]] = Counter()
    for row in [*sorted(firsts), *sorted(set(range(len(asked))) - firsts)]:
        colour, marker = asked[row]
        pairs = [*PAIRS]
        if colour:
            pairs += [(colour, each) for each in MARKERS]

        # the order of preference, see above
        ranks = {
            pair: (used[pair], pair[0] != colour, pair[1] != marker, used[pair[0]], used[pair[1]])
            for pair in pairs
        }
        pair = min(ranks, key=ranks.__getitem__)

        dealt[row] = pair
        used.update((pair, *pair))

    styles = list[LineStyle]()
    for _, (colour, marker) in sorted(dealt.items()):
        styles.append(_with_line_and_hatch(colour, marker, styles))
    return styles


def _with_line_and_hatch(colour: str, marker: str, others: Sequence[LineStyle]) -> LineStyle:
    """Return the style of a row with this colour and marker, beside the `others` above it.

    Its line is the first of those that are used least by rows of the same colour and marker, then
    of a close grey and the same marker, then of the same colour. Its hatch is the first of those
    that are used least by rows of a close grey.
    """
    close = [other for other in others if greys.are_close(colour, other.colour)]
    same_marker = Counter(other.line for other in close if other.marker == marker)
    same_colour = Counter(other.line for other in others if other.colour == colour)
    same_pair = Counter(
        other.line for other in others if (other.colour, other.marker) == (colour, marker)
    )
    line = min(range(len(LINES)), key=lambda n: (same_pair[n], same_marker[n], same_colour[n]))

    hatches = Counter(other.hatch for other in close)
    hatch = min(range(len(HATCHES)), key=hatches.__getitem__)
    return LineStyle(colour, line, marker, hatch)


def of_run(run: PlottedRun) -> Keywords:
    """Return the look of a run's method and its name in the legend, for Axes.plot."""
    look = {"color": run.style.colour, "linestyle": LINES[run.style.line]}
    return look | {"marker": run.style.marker, "label": legend_text(run.title)}


def of_class(class_index: int) -> Keywords:
    """Return fill and edge of a class, below MOST_CLASS_COLOURS, for Axes.scatter."""
    colour = CLASS_COLOURS[class_index % len(CLASS_COLOURS)]
    fill = "white"
    if class_index < len(CLASS_COLOURS):
        fill = colour
    return {"facecolor": fill, "edgecolor": colour, "linewidth": 0.8}


def grid(
    rows: int, columns: int, size: tuple[float, float] = PANEL, **more: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure and its panels, Axes [rows, columns], of `size` inches each.

    Panels are smaller if the figure would be larger than a page.
    """
    import matplotlib.pyplot as plt

    inches = paper.within_page(size[0] * columns, size[1] * rows)
    return plt.subplots(rows, columns, figsize=inches, squeeze=False, **more)


def wrapped_grid(
    rows: int, columns: int, size: tuple[float, float], **more: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure and its rows of panels; a single row is wrapped, as those of `panels`."""
    if rows == 1:
        figure, axes = panels(columns, size=size, **more)
        return figure, [axes]
    figure, table = grid(rows, columns, size, **more)
    return figure, [list(row) for row in table]


def panels(count: int, **more: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels, at most MOST_IN_A_ROW in a row."""
    figure, axes = grid(-(-count // MOST_IN_A_ROW), min(count, MOST_IN_A_ROW), **more)
    for unused in axes.flat[count:]:
        unused.remove()

    # a panel above an empty place has the numbers of a shared axis
    for place in range(count, axes.size):
        axes.flat[place - MOST_IN_A_ROW].tick_params(labelbottom=True)
    return figure, list(axes.flat[:count])


def name(
    item: PlottedRun | PlottedBackbone,
    series: Sequence[PlottedRun | PlottedBackbone],
    keys: tuple[str, ...] = SCENARIO,
) -> str:
    """Return the labels in which an item differs from others, as "pathological, micro_vit"."""
    texts = []
    for key in keys:
        values = {getattr(other, key) for other in series}
        if len(values) > 1:
            texts.append(getattr(item, key))
    return ", ".join(texts)


def run_name(run: PlottedRun, series: Sequence[PlottedRun]) -> str:
    """Return the labels in which a run differs from others, including the method's title."""
    return name(run, series, (*SCENARIO, "title"))


def by_run(series: Sequence[PlottedRun], **more: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure and a panel per run; its title is the run's `run_name`, or its method.

    If several methods were run in the same scenarios, each method has a row of panels. If there are
    more than MOST_IN_A_ROW scenarios, it has a column of panels.
    """
    methods = [run.method for run in series]
    places = [(run.dataset, run.partition, run.backbone, run.seed) for run in series]
    rows = list(dict.fromkeys(methods))
    columns = list(dict.fromkeys(places))

    if min(len(rows), len(columns)) == 1 or len(rows) * len(columns) != len(series):
        figure, axes = panels(len(series), **more)
    else:
        if len(columns) <= MOST_IN_A_ROW:
            figure, table = grid(len(rows), len(columns), **more)
        else:
            figure, table = grid(len(columns), len(rows), **more)
            table = table.T
        pairs = zip(methods, places, strict=True)
        axes = [table[rows.index(method), columns.index(place)] for method, place in pairs]

    for axis, run in zip(axes, series, strict=True):
        axis.set_title(run_name(run, series) or run.title)
    return figure, axes


def by_scenario(
    series: Sequence[PlottedRun],
    draw: Callable[[Axes, list[PlottedRun]], None],
    label: str,
    keys: tuple[str, ...] = SCENARIO,
) -> Figure:
    """Draw a panel for each group of runs with equal labels `keys`; `label` is for all y axes."""
    groups = grouped(series, keys)
    figure, axes = panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        draw(axis, runs)
        axis.set_title(name(runs[0], series, keys))
    figure.supylabel(label)
    legend(figure, axes)
    return figure


def legend_text(text: str) -> str:
    """Return a label that matplotlib shows; it leaves out labels that begin with an underscore."""
    return f" {text}" if text.startswith("_") else text


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend above the panels, each label once."""
    # the first line or bar of each label
    labels = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    if not labels:
        return

    paper.place_legend(figure, list(labels.values()), list(labels))


def write_below(figure: Figure, lines: Sequence[str]) -> None:
    """Write small lines below the panels; long ones are continued on the next line."""
    letters = int(figure.get_figwidth() * SMALL_LETTERS_PER_INCH)
    text = "\n".join(chain.from_iterable(wrap(line, letters) for line in lines))
    if text:
        figure.supxlabel(text, fontsize=SMALL)


def shades(low: float, high: float, name: str = "viridis") -> ScalarMappable:
    """Return a scale of colours for the numbers from `low` to `high`, which a colour bar takes."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), name)


def log_scale(axis: Axes) -> None:
    """Make the y axis of drawn data logarithmic, with several plain numbers even in one decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    axis.set_yscale("log")
    low, high = axis.get_ylim()

    # ticks lie at powers of ten; in a range below two decades, also at 2 and 5 times these; in a
    # short range, they are evenly spaced
    locator = LogLocator(subs=(1,))
    if high <= 5 * low:
        locator = MaxNLocator(5)
    elif high < 100 * low:
        locator = LogLocator(subs=(1, 2, 5))
    axis.minorticks_off()
    axis.yaxis.set(major_locator=locator, major_formatter="{x:g}")


def whole_numbers(axis: Axes) -> None:
    """Put the ticks of the x axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def add_remark(figure: Figure, remark: str) -> None:
    """Write the sentence of `study.remark` below a figure, and below what stands there already."""
    write_below(figure, [*figure.get_supxlabel().splitlines(), remark])


def save_figure(figure: Figure, outputs: dict[str, Path], dots_per_inch: int | None = None) -> None:
    """Write every format; equal figures give equal bytes.

    The description of the PNG says how many panels have data, which `fedloom run --smoke` checks.

    Args:
        figure: the drawn figure.
        outputs: the path of each format.
        dots_per_inch: those of the PNG, if it then has no more than paper.MOST_PIXELS; None: as
            many as LOOK says.
    """
    paper.wrap_titles(figure)
    dots_per_inch = paper.dots_per_inch(figure, dots_per_inch or LOOK["savefig.dpi"])
    with_data = sum(axes.has_data() for axes in figure.axes)
    described = {"pdf": {}, "png": {"Description": f"{with_data} panels with data"}}
    for file_format, path in outputs.items():
        metadata = METADATA[file_format] | described[file_format]
        with atomic_write(path) as temporary:
            figure.savefig(temporary, format=file_format, metadata=metadata, dpi=dots_per_inch)
