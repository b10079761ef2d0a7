"""The unit of a column of sizes or times."""

import pandas as pd
import pytest

from fedloom.report.tables import layout, published, summary
from fedloom.report.tables.units import MEGABYTES, MILLIONS, choose_unit
from shown_runs import shown, table_kind
from table_cases import run_of

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "sign"),
    [
        ([1.0, 0.001], "MB"),  # the largest value counts
        ([0.999999], "kB"),
        ([0.001], "kB"),
        ([0.000999], "B"),
        ([0.0000001], "B"),  # no unit is smaller than a byte
        ([5e6], "MB"),  # nor a larger one
        ([0.0, 0.0], "MB"),  # nothing was sent
        ([NAN, NAN], "MB"),
        ([NAN, 0.5], "kB"),
    ],
)
def test_the_unit_is_the_largest_in_which_the_largest_value_is_one(values, sign):
    assert choose_unit(pd.Series(values), MEGABYTES).sign == sign


def costs(millions):
    """Return the summary of two methods, with two seeds each, that send these numbers."""
    runs = [run_of(method, seed) for seed in (0, 1) for method in ("a", "b")]
    measured = [{"million_params": million} for million in millions]
    return summary.summarise(runs, measured)


def test_a_column_whose_values_would_all_round_to_zero_has_a_smaller_unit():
    frame = costs([0.001, 0.004, 0.002, 0.004])
    before = frame.copy()
    table = layout.summary_text(frame, table_kind("communication").column)
    assert table.titles == ["Method", "Params (k)"]
    # 1,000 and 2,000: the sample deviation is sqrt(0.5) thousand
    assert table.cells["million_params"].tolist() == ["1.50 ± 0.71", "4.00 ± 0.00"]
    assert table.marks["million_params"].tolist() == [layout.BEST, layout.SECOND]
    pd.testing.assert_frame_equal(frame, before)


def test_plain_numbers_have_no_unit_in_their_heading():
    table = layout.summary_text(costs([1e-5, 2e-5] * 2), table_kind("communication").column)
    assert table.titles == ["Method", "Params"]
    assert table.cells["million_params"].tolist() == ["10.00 ± 0.00", "20.00 ± 0.00"]


def test_a_column_beside_published_numbers_keeps_the_papers_unit():
    frame = summary.summarise([shown()], [{"million_params": 0.002}])
    values = {"Ours": {"X": {"million_params": [7.7]}}}
    entry = {"rows": {"m": "Ours"}, "columns": {"d/p": "X"}, "values": values}
    table = layout.summary_text(
        published.join_published(frame, entry), table_kind("communication").column
    )
    assert table.titles == ["Method", "Params (M)", "Params (M), published"]
    assert table.cells["million_params"].tolist() == ["0.00"]
    assert table.cells["million_params_published"].tolist() == ["7.70"]


def test_units_of_a_quantity_shrink_from_the_usual_one():
    for units in (MEGABYTES, MILLIONS):
        counts = [unit.per_usual for unit in units]
        assert counts[0] == 1 and counts == sorted(counts)
