"""Keep a figure within a page and a PNG within a screen, with letters of one size on paper.

A figure that would be larger gets smaller panels, or a PNG of fewer dots per inch: letters keep
their size on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

# the most inches of a figure, across and up, without its legend
PAGE = (9.6, 24.0)
# the most pixels of a PNG, across and up
MOST_PIXELS = (1800, 2400)
# letters of the house style's size that surely fit into an inch
LETTERS_PER_INCH = 12
# letters in a line of a title, however narrow its panel is
LEAST_LETTERS = 12
# letters in a line of a legend
LEGEND_LETTERS = 36
# inches by which a figure grows at a time, until its legend is no higher than a panel
STEP = 0.8


def within_page(width: float, height: float) -> tuple[float, float]:
    """Return the size of a figure in inches, cut to that of PAGE."""
    return min(width, PAGE[0]), min(height, PAGE[1])


def dots_per_inch(figure: Figure, wished: float) -> int:
    """Return the dots per inch of a figure's PNG: `wished`, or fewer that keep to MOST_PIXELS."""
    inches = figure.get_size_inches()
    return int(min(wished, *(most / side for most, side in zip(MOST_PIXELS, inches, strict=True))))


def wrap_titles(figure: Figure) -> None:
    """Wrap the titles of panels and the labels of axes that would run into those of others."""
    for axis in figure.axes:
        # the bar of a scale of colours has no place among the panels
        place = axis.get_subplotspec()
        if place is None:
            continue

        inches = figure.get_figwidth() / place.get_gridspec().ncols
        letters = max(LEAST_LETTERS, int(inches * LETTERS_PER_INCH))
        for side in ("left", "center"):
            title = _wrapped(axis.get_title(side), letters)
            # a title that is set again gets the letters of the house style
            if title != axis.get_title(side):
                axis.set_title(title, loc=side)
        axis.set_xlabel(_wrapped(axis.get_xlabel(), letters))

        inches = figure.get_figheight() / place.get_gridspec().nrows
        letters = max(LEAST_LETTERS, int(inches * LETTERS_PER_INCH))
        axis.set_ylabel(_wrapped(axis.get_ylabel(), letters))


def _wrapped(text: str, letters: int) -> str:
    """Return a text whose lines have at most so many letters; its own ends of lines stay."""
    return "\n".join(fill(line, letters, break_long_words=False) for line in text.split("\n"))


def place_legend(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """Put a legend above the panels, in columns, and no higher than a panel.

    The figure grows by the legend's height. If the legend is wider than the figure or higher than
    a panel, the figure is made wider, at most to PAGE, and then the panels are made higher.
    """
    width, height = figure.get_size_inches()
    place = figure.axes[0].get_subplotspec()
    rows = 1
    if place is not None:
        rows = place.get_gridspec().nrows
    shown = [_wrapped(name, LEGEND_LETTERS) for name in names]

    legend, wide, high = _drawn_legend(figure, handles, shown)
    while (wide > width or high > height / rows) and width < PAGE[0]:
        legend.remove()
        width = min(width + STEP, PAGE[0])
        figure.set_size_inches(width, height)
        legend, wide, high = _drawn_legend(figure, handles, shown)
    figure.set_size_inches(width, max(height, rows * high) + high)


def _drawn_legend(
    figure: Figure, handles: Sequence[Artist], names: Sequence[str]
) -> tuple[Legend, float, float]:
    """Draw a legend with as many columns as are surely no wider than a figure.

    Returns:
        The legend, and its width and height in inches.
    """
    look: dict[str, Any] = {"loc": "outside upper center"}
    one_row = figure.legend(handles, names, ncols=len(names), **look)
    wide, high = _inches(one_row)
    if wide <= figure.get_figwidth():
        return one_row, wide, high

    # the columns are as wide as the widest name
    one_row.remove()
    one_column = figure.legend(handles, names, **look)
    columns = max(1, int(figure.get_figwidth() / _inches(one_column)[0]))
    one_column.remove()
    legend = figure.legend(handles, names, ncols=columns, **look)
    return legend, *_inches(legend)


def _inches(legend: Legend) -> tuple[float, float]:
    """Return the width and the height of a legend in inches."""
    box = legend.get_window_extent()
    dots = legend.figure.dpi
    return box.width / dots, box.height / dots
