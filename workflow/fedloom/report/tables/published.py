"""Compare measured numbers with a paper's, and classify the differences.

An entry has `rows` {label: the paper's row}, `columns` {dataset/partition: the paper's column} and
`values` {row: {column: {metric: value}}}, a value being [mean, std], [mean], {above: bound} or
{below: bound}. Tables of a grid have no `rows`, those of data sets no `columns`.
"""

import math
from decimal import Decimal

import pandas as pd

from fedloom.report.tables.summary import metrics

# what rounding leaves of the deviation of equal numbers
NO_DEVIATION = 1e-9
NAN = float("nan")


def printed(entry: dict | None, scenario: str, label: str) -> dict:
    """Return the paper's values by metric for a label, or a grid's combination; {} for none."""
    if entry is None:
        return {}

    # the paper's row and column; tables of a grid have its combinations as rows
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


def of_grid(entry: dict | None, scenario: str, row: str) -> float:
    """Return the paper's mean accuracy of a grid's combination; NaN if it has none."""
    return number(printed(entry, scenario, row).get("participating_mean"))


def join_published(frame: pd.DataFrame, entry: dict) -> pd.DataFrame:
    """Return a summary with columns of the paper's numbers beside each metric that it prints.

    They are `<metric>_published`, and with these ends `_std`, `_above` and `_below` (it is only a
    bound), and `_verdict`, see the function.
    """
    frame = frame.copy()
    labels = zip(frame["dataset"], frame["partition"], frame["method"], strict=True)
    cells = [printed(entry, f"{dataset}/{part}", method) for dataset, part, method in labels]

    for name in metrics(frame):
        if not any(name in cell for cell in cells):
            continue

        # what the paper prints in every row, and how far ours is from it
        values = [_parts(cell.get(name, [])) for cell in cells]
        pairs = zip(frame[name], frame[f"{name}_std"], values, strict=True)
        verdicts = [verdict(mean, std, *value) for mean, std, value in pairs]

        columns = [*zip(*values, strict=True), verdicts]
        for end, column in zip(("", "_std", "_above", "_below", "_verdict"), columns, strict=True):
            frame[f"{name}_published{end}"] = column
    return frame


def _parts(value: list | dict) -> tuple[float, float, bool, bool]:
    """Return number and deviation of a printed value, NaN if missing, and which bound it is."""
    deviation = NAN
    if isinstance(value, list):
        deviation = number(value[1:])
    return number(value), deviation, "above" in value, "below" in value


def verdict(
    mean: float, std: float, published: float, published_std: float, above: bool, below: bool
) -> str:
    """Return within how many standard deviations a measured mean lies of a published one.

    The deviation is that of the difference, sqrt(std^2 + published_std^2), a missing one of the
    paper 0. Without any deviation, as of a count, only the printed digits can agree ("as printed").
    Return "" where they do not, for a bound, a missing number, and a mean of one seed.
    """
    if above or below or any(map(math.isnan, (mean, std, published))):
        return ""

    # the difference, and whether rounding explains it: up to 0.005 of 84.86
    apart = abs(mean - published)
    exponent = Decimal(str(published)).as_tuple().exponent
    as_printed = apart <= 0.5 * 10.0 ** min(int(exponent), 0) * (1 + 1e-9)

    # the difference in deviations, if there are any
    deviation = math.hypot(std, 0.0 if math.isnan(published_std) else published_std)
    if deviation <= NO_DEVIATION:
        if as_printed:
            return "as printed"
        return ""
    for number in (1, 2):
        if as_printed or apart <= number * deviation:
            return f"within {number} SD"
    return "beyond 2 SD"
