"""Make the curves of a report as Plotly's JSON: hover for numbers, click a name to hide its line.

Colours, lines and markers are those of the study's figures. Names are escaped, because Plotly reads
them as HTML. A chart is a dict: `spec` has Plotly's data and layout, and `about` is the caption.
"""

from collections.abc import Iterator, Sequence
from html import escape

import pandas as pd

from fedloom.common.json_types import JsonDict
from fedloom.report.figures.style import assign_styles, with_styles
from fedloom.report.page.run_details import LOSS, PLOTTED_CURVES, RunGroup
from fedloom.report.plotted_runs import LineStyle

# Plotly's names of the lines in style.LINES, and of matplotlib's markers
DASHES = ("solid", "dash", "dashdot", "dot", "9px,2px,2px,2px,2px,2px")
SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down",
    "P": "cross", "X": "x", "*": "star",
}  # fmt: skip
DECIMALS = 4
# pixels of a name in a legend: the least, those of a letter, and the most
NAME_WIDTH = (95, 6, 260)


def curves_by_scenario(groups: Sequence[RunGroup]) -> Iterator[JsonDict]:
    """Yield the curves of all methods: a chart per scenario and measure, a line per method.

    Members of grids are left out, since there may be thousands. The page shows their curves beside
    their runs.
    """
    groups_by_place: dict[str, list[RunGroup]] = {}
    for group in groups:
        if group.first.member is None:
            groups_by_place.setdefault(group.place, []).append(group)

    # all charts of a place draw a method in the same style
    for place, own in groups_by_place.items():
        where = ""
        if len(groups_by_place) > 1:
            where = f" on {place}"
        firsts = with_styles([group.first for group in own])
        for name, title in PLOTTED_CURVES.items():
            lines = []
            for group, run in zip(own, firsts, strict=True):
                lines += _mean(group, name, run.style)
            about = f"{title} by round{where}: mean and standard deviation over seeds"
            yield from _chart(about, lines, name)


def by_seed(group: RunGroup) -> Iterator[JsonDict]:
    """Yield the curves of a group's runs: a chart per measure, a line per seed."""
    styles = assign_styles([{}] * len(group.runs))
    for name, title in PLOTTED_CURVES.items():
        lines = [
            _line(f"seed {shown.run.seed}", shown.curves[name], style)
            for shown, style in zip(group.runs, styles, strict=True)
            if name in shown.curves
        ]
        about = f"{title} by round of {group.first.title} on {group.place}: a line per seed"
        yield from _chart(about, lines, name)


def _mean(group: RunGroup, name: str, style: LineStyle) -> list[JsonDict]:
    """Return the mean over a group's seeds as a line, with a band of one standard deviation."""
    curves = [shown.curves[name] for shown in group.runs if name in shown.curves]
    if not curves:
        return []
    band = pd.concat(curves).groupby(level=0).agg(["mean", "std"])
    line = _line(group.first.title, band["mean"], style)
    if len(group.runs) == 1:
        return [line]

    # the band of one standard deviation; line and band have one name in the legend
    line["legendgroup"] = group.first.method
    line["customdata"] = _numbers(band["std"])
    line["hovertemplate"] += " ± %{customdata:.4g}"

    # accuracies end at 0 and 100 %; a loss has a log axis, which has no 0
    ends: tuple[pd.Series | float, float | None] = (0, 100)
    if name == LOSS:
        ends = (band["mean"] / 10, None)

    # the edges have no line, and the upper one fills the band between them, 13 % opaque
    hidden = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    edges = []
    for way in (-1, 1):
        edge = (band["mean"] + way * band["std"]).clip(*ends)
        drawn = {"x": line["x"], "y": _numbers(edge), "legendgroup": group.first.method}
        edges.append(drawn | hidden)
    low, high = edges
    high |= {"fill": "tonexty", "fillcolor": f"{style.colour}22"}
    return [low, high, line]


def _line(name: str, curve: pd.Series, style: LineStyle) -> JsonDict:
    """Return a line for Plotly, with a marker at each point."""
    return {
        "name": escape(name, quote=False),
        "x": curve.index.tolist(),
        "y": _numbers(curve),
        "mode": "lines+markers",
        "line": {"color": style.colour, "dash": DASHES[style.line], "width": 1.8},
        "marker": {"symbol": SYMBOLS[style.marker], "size": 6},
        "hovertemplate": "%{y:.4g}",
    }


def _numbers(values: pd.Series) -> list[float | None]:
    """Return numbers for JSON, which has no NaN."""
    return [None if pd.isna(value) else round(value, DECIMALS) for value in values]


def _width_of_names(lines: Sequence[JsonDict]) -> int:
    """Return the pixels that the longest name in the legend of these lines needs."""
    least, letter, most = NAME_WIDTH
    longest = max(len(line.get("name", "")) for line in lines)
    return min(max(least, letter * longest), most)


def _chart(about: str, lines: list[JsonDict], name: str) -> Iterator[JsonDict]:
    """Yield a chart of these lines, or nothing if there are none; a loss has a logarithmic axis."""
    if not lines:
        return

    # no tick lies between two rounds
    look = {"gridcolor": "#e5e5e5", "zeroline": False}
    last = max(max(line["x"]) for line in lines)
    rounds = look | {"title": {"text": "Round"}, "nticks": min(last, 8)}
    values = look | {"title": {"text": "Accuracy (%)"}}
    if name == LOSS:
        values = look | {"title": {"text": "Loss"}}
        values |= {"type": "log", "dtick": "D2", "minorloglabels": "complete"}

    layout = {
        "xaxis": rounds,
        "yaxis": values,
        "hovermode": "x unified",
        "showlegend": True,
        # page.js makes room for all names
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "maxheight": 1,
            "entrywidth": _width_of_names(lines),
            "font": {"size": 11},
        },
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "font": {"family": "system-ui, sans-serif", "color": "#222"},
    }
    yield {"about": about, "spec": {"data": lines, "layout": layout}}
