"""Colours, markers and lines of a figure's rows: no two look alike.

A plugin may ask for a colour and a marker (`[look]` in method.toml), so that it looks the same in
every figure in which no other row asks for them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedloom.report.figures.style import LINES
from fedloom.study.plot_inputs import LineStyle, PlottedRun

# Okabe and Ito's colours, told apart with any colour vision; without yellow, too pale on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# 7 and 8 have no common divisor: every pair comes once, and neighbours differ in both
PAIRS = tuple((COLOURS[k % 7], MARKERS[k % 8]) for k in range(7 * 8))


def with_styles(runs: Sequence[PlottedRun]) -> list[PlottedRun]:
    """Return the runs of a figure, each with the line style of its method."""
    looks = {run.method: run.look for run in runs}
    styles = dict(zip(looks, deal(list(looks.values())), strict=True))
    return [replace(run, style=styles[run.method]) for run in runs]


def deal(wishes: Sequence[Mapping[str, Any]]) -> list[LineStyle]:
    """Return the line styles of a figure's rows, in their order.

    The first row with a wish of both colour and marker has it granted. Every other row gets the
    pair that fewest rows have; of those one of the colour that it wishes, so that the labels of one
    plugin share their colour, then of the marker, then of what is rarest in the figure. Rows of one
    colour differ by their lines too, for bars have no markers.

    Args:
        wishes: `colour` and `marker` of every row, both, one or none.
    """
    asked = [(str(w.get("colour", "")).upper(), str(w.get("marker", ""))) for w in wishes]
    dealt: dict[int, tuple[str, str]] = {}
    used: Counter[str | tuple[str, str]] = Counter()  # pairs, colours and markers

    def give(row: int, pair: tuple[str, str]) -> None:
        dealt[row] = pair
        used.update((pair, *pair))

    for row, wish in enumerate(asked):
        if all(wish) and not used[wish]:
            give(row, wish)
    for row, (colour, marker) in enumerate(asked):
        if row in dealt:
            continue
        own = [(colour, each) for each in MARKERS if colour and colour not in COLOURS]
        ranks = [
            (used[pair], pair[0] != colour, pair[1] != marker, used[pair[0]], used[pair[1]])
            for pair in [*PAIRS, *own]
        ]
        give(row, [*PAIRS, *own][ranks.index(min(ranks))])
    seen: Counter[str] = Counter()
    styles = []
    for _, (colour, marker) in sorted(dealt.items()):
        styles.append(LineStyle(colour, seen[colour] % len(LINES), marker))
        seen[colour] += 1
    return styles
