"""Choose the panels of figures that would have more than a reader takes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fedloom.report import requirements
from fedloom.report.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# the most panels of a figure of maps or weights
MOST = requirements.MOST_PANELS
# a figure keeps this many columns before it leaves out rows
LEAST_COLUMNS = 3
Item = TypeVar("Item")


def evenly(items: Sequence[Item], most: int = MOST) -> list[Item]:
    """Return at most `most` of the items, evenly spaced, from the first to the last."""
    places = np.linspace(0, len(items) - 1, min(len(items), most)).round().astype(int)
    return [items[place] for place in places]


def say_left_out(figure: Figure, counts: dict[str, tuple[int, int]]) -> None:
    """Write below a figure what it leaves out; nothing if it shows all.

    `counts` maps a word such as "runs" to how many of them are shown, and to how many there are.
    """
    parts = [f"{few} of {every} {word}" for word, (few, every) in counts.items() if few < every]
    if parts:
        style.add_remark(figure, f"Shown are {' and '.join(parts)}, evenly spaced.")


def choose_columns(columns: Sequence[Item], rows: int) -> list[Item]:
    """Return the columns that leave room for `rows` rows; at least LEAST_COLUMNS, if there are."""
    return evenly(columns, max(LEAST_COLUMNS, MOST // rows))


def choose_rows(rows: Sequence[Item], columns: int) -> list[Item]:
    """Return the rows that have room beside `columns` columns; at least one."""
    return evenly(rows, max(1, MOST // columns))
