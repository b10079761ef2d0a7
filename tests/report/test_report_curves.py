"""The curves of the report: bands stay where accuracies and losses can be."""

import pandas as pd
import pytest

from fedloom.report.page import curves
from fedloom.report.page.run_details import RunGroup, Shown
from shown_runs import shown


def band(measure: str, *of_seeds: float) -> tuple[list[float], list[float], list[float]]:
    """Return lower edge, upper edge and mean of a chart of runs of one round."""
    runs = [shown(seed=seed) for seed in range(len(of_seeds))]
    shows = [
        Shown(run, {measure: pd.Series({1: value})}, {}, {}, [])
        for run, value in zip(runs, of_seeds, strict=True)
    ]
    group = RunGroup("g", "d/p/b", {}, runs[0], shows, {}, [])
    (chart,) = curves.curves_by_scenario([group])
    low, high, mean = (line["y"] for line in chart["spec"]["data"])
    return low, high, mean


@pytest.mark.parametrize(
    ("measure", "of_seeds", "expected"),
    [
        ("global", (80, 84), (82 - 8**0.5, 82 + 8**0.5, 82)),
        ("global", (90, 100), (95 - 50**0.5, 100, 95)),
        ("global", (0, 10), (0, 5 + 50**0.5, 5)),
        ("loss", (0.0, 4.0), (0.2, 2 + 8**0.5, 2)),  # its axis is logarithmic
    ],
)
def test_a_band_is_a_deviation_wide_and_ends_where_values_do(measure, of_seeds, expected):
    (low,), (high,), (mean,) = band(measure, *of_seeds)
    assert (low, high, mean) == pytest.approx(expected, abs=1e-4)
