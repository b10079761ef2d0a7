"""Choose the unit of a column of sizes or times, so that its numbers can be read."""

from typing import NamedTuple

import pandas as pd


class Unit(NamedTuple):
    """A unit of sizes or times."""

    # its sign in the heading of a column; "" for plain numbers
    sign: str
    # how many of it make one of the column's usual unit
    per_usual: float


# the usual unit of a quantity, in which Parquet files hold it, and then smaller ones
MEGABYTES = (Unit("MB", 1), Unit("kB", 1e3), Unit("B", 1e6))
MILLIONS = (Unit("M", 1), Unit("k", 1e3), Unit("", 1e6))
HOURS = (Unit("h", 1), Unit("min", 60), Unit("s", 3600), Unit("ms", 3.6e6))
SECONDS = (Unit("s", 1), Unit("ms", 1e3))
MILLISECONDS = (Unit("ms", 1), Unit("µs", 1e3), Unit("ns", 1e6))


def choose_unit(values: pd.Series, units: tuple[Unit, ...]) -> Unit:
    """Return the largest unit in which the column's largest value is at least one.

    `values` are in the first of the `units`, which is returned if there is no value above zero. If
    the largest value is below one in every unit, the smallest unit is returned.
    """
    largest = values.max()
    if not largest > 0:
        return units[0]
    for unit in units:
        if largest * unit.per_usual >= 1:
            return unit
    return units[-1]
