"""Write the table of a paper's claims as text."""

import math

import pandas as pd

from fedloom.report.tables.accuracy import at
from fedloom.report.tables.layout import EMPTY, Texts, unmarked
from fedloom.report.verdicts import UNDECIDED
from fedloom.study.plot_inputs import PlottedRun

TITLES = {
    "claim": "Claim",
    "where": "In the paper",
    "setting": "Setting",
    "printed": "The paper's difference",
    "scenario": "Here",
    "difference": "Difference",
    "interval": "95 % interval",
    "rival": "Against",
    "seeds": "Seeds",
    "verdict": "Verdict",
}
OUR_BOUND = " (bound: ours)"
DECIMALS = 2


def texts(table: pd.DataFrame) -> Texts:
    """Return the rows as text: the claim, its place, what the paper and the runs show."""
    rows = []
    for row in table.to_dict("records"):
        low, high = row["low"], row["high"]
        printed = dict.fromkeys(map(_number, (row["printed_low"], row["printed_high"])))
        rows.append(
            [
                row["says"] + (OUR_BOUND if row["bound"] == "ours" else ""),
                row["where"],
                row["setting"],
                " to ".join(printed),
                row["scenario"],
                _difference(row["difference"], low, high),
                _interval(low, high),
                EMPTY if pd.isna(row["rival"]) else row["rival"],
                EMPTY if pd.isna(row["seeds"]) else f"{row['seeds']:.0f}",
                row["verdict"] + (f" ({row['reason']})" if row["reason"] else ""),
            ]
        )
    return unmarked(pd.DataFrame(rows, columns=list(TITLES)), list(TITLES.values()), 3)


def _number(value: float | None) -> str:
    """Write a difference with its sign; large numbers in full."""
    if value is None or pd.isna(value):
        return EMPTY
    return f"{value:+.{DECIMALS}f}" if abs(value) < 1e4 else f"{value:+.0f}"


def _difference(value: float | None, low: float | None, high: float | None) -> str:
    """Write a difference, after a sign if its interval, which has one end, says it is a bound."""
    if low == -math.inf and high == math.inf:
        return EMPTY
    side = "> " if high == math.inf else "< " if low == -math.inf else ""
    return side + _number(value)


def _interval(low: float | None, high: float | None) -> str:
    """Write the ends of an interval, those that it has."""
    if pd.isna(low) or (low == -math.inf and high == math.inf):
        return EMPTY
    if high == math.inf:
        return f"above {_number(low)}"
    return f"below {_number(high)}" if low == -math.inf else f"[{_number(low)}, {_number(high)}]"


def caption(citation: str, runs: list[PlottedRun], table: pd.DataFrame) -> str:
    """Describe the comparison and the intervals, and count the verdicts."""
    counts = table["verdict"].value_counts().sort_index()
    verdicts = ", ".join(f"{count} {name}" for name, count in counts.items())
    corrected, undecided = int(table["corrected"].sum()), counts.get(UNDECIDED, 0)
    text = (
        f"what {citation} claims, and what these runs show, {at(runs)} ({verdicts}). Differences "
        "are of the first-named method to that of the others which speaks most against the claim, "
        "in points where they are of accuracies; their 95 % intervals are of Student's t over "
        "seeds, and at least as wide as a paired bootstrap over clients. A claim holds if all "
        "methods that it names were run and every interval is above zero (or within the bound). It "
        "does not hold if one is below; with several others that interval is a wider one "
        "(Bonferroni), not that shown. Else it is undecided"
    )
    if corrected:
        text += f", {corrected} only since there are several others"
    return text + (f"; few seeds decide little, as {undecided} here." if undecided else ".")
