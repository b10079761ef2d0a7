"""Compare measured numbers with a paper's, and classify the differences.

An entry holds the numbers of one table of a paper:

- `rows` {label: the paper's row}; an entry for a grid has none;
- `columns` {dataset/partition: the paper's column}; an entry for data sets has none;
- `values` {row: {column: {metric: value}}}; a value is [mean, std], [mean], {above: bound} or
  {below: bound}.
"""

import math
from decimal import Decimal
from typing import NamedTuple

import pandas as pd

from fedloom.report.tables.summary import metrics

# the deviation of equal numbers is not above this, which rounding may leave
NO_DEVIATION = 1e-9
NAN = float("nan")
# the unit in which verdicts say how far a number is from ours
DEVIATIONS = "SD"


def printed_numbers(entry: dict | None, scenario: str, label: str) -> dict:
    """Return the paper's values by metric; {} if there are none.

    `label` is the label of a method, or the combination of values of a grid's member.
    """
    if entry is None:
        return {}

    # the paper's row and column; in an entry for a grid, combinations of values name the rows
    row = label
    if "rows" in entry:
        row = entry["rows"].get(label)
    cells = entry["values"].get(row, {})
    if "columns" not in entry:
        return next(iter(cells.values()), {})
    return cells.get(entry["columns"].get(scenario), {})


def number(value: list | dict | None) -> float:
    """Return the number or the bound that a paper prints; NaN if it prints none."""
    if not value:
        return NAN
    if isinstance(value, dict):
        value = [*value.values()]
    return float(value[0])


def printed_mean(entry: dict | None, scenario: str, row: str) -> float:
    """Return the paper's mean accuracy for a combination of a grid's values; NaN if it has none."""
    return number(printed_numbers(entry, scenario, row).get("participating_mean"))


def join_published(frame: pd.DataFrame, entry: dict) -> pd.DataFrame:
    """Return a summary with additional columns for each metric that the paper prints.

    `<metric>_published` is the paper's number. The columns with this name and an ending are:

    - `_std`: its standard deviation;
    - `_above`, `_below`: True if it is only a bound, which our number should be above or below;
    - `_verdict`: what `verdict` says.
    """
    frame = frame.copy()
    labels = zip(frame["dataset"], frame["partition"], frame["method"], strict=True)
    cells = [
        printed_numbers(entry, f"{dataset}/{part}", method) for dataset, part, method in labels
    ]

    for name in metrics(frame):
        if not any(name in cell for cell in cells):
            continue

        # the paper's number in every row, and how far our number is from it
        values = [PublishedNumber.from_yaml(cell.get(name, [])) for cell in cells]
        measured = zip(frame[name], frame[f"{name}_std"], strict=True)
        verdicts = [
            verdict(mean, std, value) for (mean, std), value in zip(measured, values, strict=True)
        ]

        frame[f"{name}_published"] = [value.number for value in values]
        frame[f"{name}_published_std"] = [value.std for value in values]
        frame[f"{name}_published_above"] = [value.is_above for value in values]
        frame[f"{name}_published_below"] = [value.is_below for value in values]
        frame[f"{name}_published_verdict"] = verdicts
    return frame


def explanation(frame: pd.DataFrame) -> list[str]:
    """Return a sentence on the unit SD, if a verdict of `join_published` has it; else none."""
    verdicts = frame.filter(regex="_published_verdict$")
    if not verdicts.map(lambda text: text.endswith(DEVIATIONS)).to_numpy().any():
        return []
    return [
        f"{DEVIATIONS}: the standard deviation of the difference between the published number and "
        "ours."
    ]


class PublishedNumber(NamedTuple):
    """A number of a paper with its standard deviation, each NaN if the paper prints none."""

    number: float
    std: float
    # True if the paper's number is only a bound: ours should be above it, or below it
    is_above: bool
    is_below: bool

    @classmethod
    def from_yaml(cls, value: list | dict) -> "PublishedNumber":
        """Read a value of numbers.yaml: [mean, std], [mean], {above: bound}, {below: bound}, []."""
        if isinstance(value, dict):
            return cls(number(value), NAN, "above" in value, "below" in value)
        return cls(number(value), number(value[1:]), False, False)


def verdict(mean: float, std: float, published: PublishedNumber) -> str:
    """Say how far a measured mean is from a published one.

    - "within 1 SD", "within 2 SD" or "beyond 2 SD": SD is the standard deviation of the difference,
      sqrt(std^2 + published_std^2). If the paper prints no deviation, published_std is 0.
    - "as printed": the numbers have no deviation, for example counts, and the printed digits agree.
    - "": such digits do not agree; or the paper's number is a bound, a number is missing, or the
      mean is that of a single seed.
    """
    if published.is_above or published.is_below:
        return ""
    if any(map(math.isnan, (mean, std, published.number))):
        return ""

    # the difference, and whether rounding explains it; for 84.86, rounding explains 0.005
    apart = abs(mean - published.number)
    exponent = Decimal(str(published.number)).as_tuple().exponent
    as_printed = apart <= 0.5 * 10.0 ** min(int(exponent), 0) * (1 + 1e-9)

    # the difference in deviations, if there are any
    published_std = published.std
    if math.isnan(published_std):
        published_std = 0.0
    deviation = math.hypot(std, published_std)
    if deviation <= NO_DEVIATION:
        if as_printed:
            return "as printed"
        return ""
    for number in (1, 2):
        if as_printed or apart <= number * deviation:
            return f"within {number} {DEVIATIONS}"
    return f"beyond 2 {DEVIATIONS}"
