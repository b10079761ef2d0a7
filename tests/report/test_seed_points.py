"""Figures of a point per seed: where the points, means and intervals lie, by hand."""

import numpy as np
import pandas as pd
import pytest

from fedloom.common.ids import SERVER_MODEL
from fedloom.config.settings import ReportedRounds
from refusals import refused
from shown_runs import draw, shown


@pytest.fixture
def run(tmp_path):
    """Return make(one, two): a run with two participating clients' accuracies in percent."""
    made = []

    def make(one, two, **values):
        path = tmp_path / f"{len(made)}.parquet"
        made.append(path)
        columns = {"client_id": [0, 1, SERVER_MODEL], "num_correct": [one, two, 50]}
        columns |= {"participating": [True, True, False], "num_test": 100, "personalized": False}
        pd.DataFrame(columns | {"round": 2}).to_parquet(path)
        return shown(**values, evaluation=path, reported=ReportedRounds((2,)))

    return make


def test_points_are_seeds_and_a_line_is_students_interval(run):
    """The means of two seeds are 50 and 60; Student's factor of two seeds is 12.706."""
    series = [
        run(40, 60, method="a", title="A", seed=0),
        run(50, 70, method="a", title="A", seed=1),
        run(80, 90, method="b", title="B"),
    ]
    (axis,) = draw("seed_points", series).axes

    first, second = (part.get_offsets() for part in axis.collections)
    assert first[:, 0].tolist() == [50, 60] and second[:, 0].tolist() == [85]
    assert np.abs(first[:, 1]).max() < 0.5, "in the row of the method"
    assert len(set(first[:, 1])) == 2, "equal numbers would all be seen"

    interval, mean, alone, last = (line.get_xdata().tolist() for line in axis.lines)
    half = 12.706 * np.std([50, 60], ddof=1) / 2**0.5
    assert interval == pytest.approx([55 - half, 55 + half], abs=0.01)
    assert mean == [55] and alone == [85, 85] and last == [85]
    low, high = axis.get_ylim()
    assert low > high, "the first method is the highest row"


def test_panels_are_scenarios_and_share_their_axis(run):
    series = [run(40, 60, partition="p"), run(10, 30, partition="q")]
    figure = draw("seed_points", series, metrics=["participating_worst"])
    assert [axis.get_title() for axis in figure.axes] == ["p", "q"]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert figure.get_supxlabel() == "Worst client's accuracy (%)"


def _names_methods(axis) -> bool:
    """Say whether the names of methods stand beside a panel."""
    return axis.yaxis.get_tick_params()["labelleft"]


def test_metrics_are_the_columns_of_a_row_per_scenario_and_names_of_methods_stand_once(run):
    series = [run(40, 60, partition="p"), run(10, 30, partition="q")]
    figure = draw("seed_points", series, metrics=["participating_mean", "participating_worst"])
    points = [axis.collections[0].get_offsets()[0][0] for axis in figure.axes]
    assert points == [50, 40, 20, 10]
    titles = [axis.get_xlabel() for axis in figure.axes]
    assert titles == ["", "", "Mean accuracy (%)", "Worst client's accuracy (%)"]
    assert [axis.get_title() for axis in figure.axes] == ["p", "p", "q", "q"]

    assert [_names_methods(axis) for axis in figure.axes] == [True, False, True, False]


def test_names_stand_in_each_panel_of_a_row_where_scenarios_differ_in_their_methods(run):
    series = [run(1, 2, partition="p", method="a"), run(1, 2, partition="q", method="b")]
    figure = draw("seed_points", series)
    assert [_names_methods(axis) for axis in figure.axes] == [True, True]

    # several metrics of a scenario are in one row, and have the same methods
    figure = draw("seed_points", series, metrics=["participating_mean", "participating_worst"])
    assert [_names_methods(axis) for axis in figure.axes] == [True, False, True, False]


def test_panels_above_an_empty_place_have_numbers_too(run):
    series = [run(40, 60, partition=f"p{number}") for number in range(4)]
    figure = draw("seed_points", series)
    figure.draw_without_rendering()
    shown_numbers = [
        any(label.get_visible() for label in axis.get_xticklabels()) for axis in figure.axes
    ]
    assert shown_numbers == [False, True, True, True]


def test_a_metric_that_a_run_lacks_is_one_line(run):
    with refused("0.parquet", "held_out_mean"):
        draw("seed_points", [run(1, 2)], metrics=["held_out_mean"])
