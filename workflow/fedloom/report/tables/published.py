"""Put a paper's numbers beside the measured ones, and say how far apart they are."""

import math
from decimal import Decimal

import pandas as pd

from fedloom.report.tables.summary import metrics

NO_DEVIATION = 1e-9  # what rounding leaves of the deviation of equal numbers


def beside(frame: pd.DataFrame, entry: dict) -> pd.DataFrame:
    """Return `frame` with the columns `<metric>_published`, `_published_std`, and what they say.

    `<metric>_published_above` and `_published_below` say that the number is only a bound,
    `_published_verdict` how far it is from the measured one, see `verdict`. Only metrics of which
    the paper has a number in one of the rows get such columns.

    Args:
        frame: of `summarise`.
        entry: `rows` {method label: the paper's row}, `columns` {dataset/partition: the paper's
            column}, `values` {row: {column: {metric: value}}}, a value being [mean, std], [mean],
            {above: bound} or {below: bound}.
    """
    frame = frame.copy()
    cells = [_cell(row, entry) for _, row in frame.iterrows()]
    for name in [name for name in metrics(frame) if any(name in cell for cell in cells)]:
        values = [_value(cell.get(name, [])) for cell in cells]
        columns = ("published", "published_std", "published_above", "published_below")
        for column, numbers in zip(columns, zip(*values, strict=True), strict=True):
            frame[f"{name}_{column}"] = numbers
        pairs = zip(frame[name], frame[f"{name}_std"], values, strict=True)
        verdicts = [verdict(mean, std, *value) for mean, std, value in pairs]
        frame[f"{name}_published_verdict"] = verdicts
    return frame


def verdict(
    mean: float, std: float, published: float, published_std: float, above: bool, below: bool
) -> str:
    """Say within how many standard deviations a measured mean is of a published one.

    The deviation is that of the difference, sqrt(std^2 + published_std^2); a paper that gives none
    counts with 0. Where there is no deviation at all, as of a count, only the printed digits can
    agree ("as printed"). Returns "" where they do not, for a bound, a missing number, and a mean of
    one seed.
    """
    if above or below or any(map(math.isnan, (mean, std, published))):
        return ""
    apart = abs(mean - published)
    deviation = math.hypot(std, 0.0 if math.isnan(published_std) else published_std)
    as_printed = apart <= _half_a_digit(published)
    if deviation <= NO_DEVIATION:
        return "as printed" if as_printed else ""
    for number in (1, 2):
        if as_printed or apart <= number * deviation:
            return f"within {number} SD"
    return "beyond 2 SD"


def _half_a_digit(number: float) -> float:
    """Return half of the last digit that a number is written with, 0.005 of 84.86."""
    exponent = Decimal(str(number)).as_tuple().exponent
    return 0.5 * 10.0 ** min(int(exponent), 0) * (1 + 1e-9)


def of_grid(entry: dict | None, scenario: str, row: str) -> float:
    """Return the paper's mean accuracy of a grid's combination; NaN if it has none.

    Args:
        entry: `columns` {dataset/partition: the paper's column}, `values` as for `beside`; None for
            a table without published numbers.
        row: the paper's row, which the combination's values name.
    """
    if entry is None:
        return float("nan")
    column = entry["columns"].get(scenario)
    value = entry["values"].get(row, {}).get(column, {}).get("participating_mean")
    return float("nan") if value is None else float(value[0])


def _cell(row: pd.Series, entry: dict) -> dict:
    """Return the paper's metrics for a row of the table, {} if it has none."""
    column = entry["columns"].get(f"{row['dataset']}/{row['partition']}")
    name = entry["rows"].get(row["method"])
    return entry["values"].get(name, {}).get(column, {})


def _value(value: list | dict) -> tuple[float, float, bool, bool]:
    """Return a number, its deviation, and whether the number is a lower or an upper bound."""
    nan = float("nan")
    if isinstance(value, dict):
        ((side, bound),) = value.items()
        return float(bound), nan, side == "above", side == "below"
    mean, std = [*map(float, value), nan, nan][:2]
    return mean, std, False, False
