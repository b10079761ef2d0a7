"""Figures of accuracies by method, partition and option: what they draw, by hand."""

import numpy as np
import pandas as pd
import pytest

from fedloom.common.ids import SERVER_MODEL
from fedloom.config.settings import GridMember, ReportedRounds
from fedloom.report.figures.accuracies import congruence_of_run
from fedloom.report.plotted_runs import LineStyle
from refusals import refused
from shown_runs import draw, shown


@pytest.fixture
def run(tmp_path):
    """Return make(one, two, overall): a run with two clients' and the global accuracy in %."""
    made = []

    def make(one, two, overall=50, **values):
        path = tmp_path / f"{len(made)}.parquet"
        made.append(path)
        columns = {"client_id": [0, 1, SERVER_MODEL], "num_correct": [one, two, overall]}
        columns |= {"participating": [True, True, False], "num_test": 100, "personalized": False}
        pd.DataFrame(columns | {"round": 2}).to_parquet(path)
        return shown(**values, evaluation=path, reported=ReportedRounds((2,)))

    return make


def _member(title="G", grid="g", **at):
    return GridMember(grid, 0, at, at, title)


def test_a_point_per_method_lies_at_its_two_accuracies(run):
    series = [
        run(40, 60, 55, method="a", title="A", seed=0),
        run(50, 70, 65, method="a", title="A", seed=1),
        run(80, 90, 70, method="b", title="B"),
    ]
    figure = draw("two_metrics", series)
    (axis,) = figure.axes
    points = [line.get_xydata().tolist() for line in axis.lines if line.get_marker() == "o"]
    assert points == [[[60, 45]], [[70, 80]]]
    assert axis.get_xlabel() == "Global accuracy (%)"
    assert figure.get_supylabel() == "Worst client's accuracy (%)"
    wide, high = axis.containers[0].lines[2]
    (ends,) = wide.get_segments()
    assert ends[:, 0] == pytest.approx([60 - 50**0.5, 60 + 50**0.5]), "over seeds"
    (ends,) = high.get_segments()
    assert ends[:, 1] == pytest.approx([45 - 50**0.5, 45 + 50**0.5])


def test_a_metric_that_a_run_lacks_is_one_line(run):
    with refused("0.parquet", "held_out_mean"):
        draw("two_metrics", [run(1, 2)], x="held_out_mean")


def test_bars_stand_by_partition_and_method(run):
    series = [
        run(40, 60, method="a", title="A", partition="p"),
        run(70, 90, method="a", title="A", partition="q"),
        run(10, 30, method="b", title="B", partition="p"),
        run(20, 40, method="b", title="B", partition="q", seed=0),
        run(30, 50, method="b", title="B", partition="q", seed=1),
    ]
    figure = draw("accuracy_bars", series)
    (axis,) = figure.axes
    heights = [bar.get_height() for bar in axis.patches]
    assert heights == [50, 80, 20, 35]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axis.patches]
    assert middles == pytest.approx([-0.2, 0.8, 0.2, 1.2])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["p", "q"]
    ends = [cap.get_ydata() for bars in axis.containers[::2] for cap in bars.lines[1]]
    assert np.isnan([*ends[0], *ends[1], ends[2][0], ends[3][0]]).all(), "of one seed nothing"
    assert (ends[2][1], ends[3][1]) == pytest.approx((35 - 50**0.5, 35 + 50**0.5))
    assert axis.get_ylim() == (0, 103)


def test_a_line_goes_along_an_option_for_every_value_of_the_others(run):
    series = [
        run(10 * k + seed, 50, 7, seed=seed, method=f"g.{k}-{m}", member=_member(depth=k, mu=m))
        for m in (0, 0.5)
        for k in (1, 2, 4)
        for seed in (0, 2)
    ]
    metrics = ["participating_worst", "global"]
    worst, overall = draw("option_line", series, metrics=metrics).axes
    lines = [c.lines[0].get_xydata().tolist() for c in worst.containers]
    assert lines == [[[1, 11], [2, 21], [4, 41]]] * 2
    assert overall.containers[0].lines[0].get_ydata().tolist() == [7, 7, 7]
    assert [c.get_label() for c in worst.containers] == ["mu = 0", "mu = 0.5"]
    assert worst.get_xlabel() == "depth"
    (axis,) = draw("option_line", series, metrics=metrics[:1], option="mu").axes
    assert [c.get_label() for c in axis.containers] == ["depth = 1", "depth = 2", "depth = 4"]
    assert axis.containers[2].lines[0].get_xydata().tolist() == [[0, 41], [0.5, 41]]


def test_values_that_are_no_numbers_stand_side_by_side(run):
    """SGPT's Fig. 4 has a line for shared prompts alone and one for group prompts beside them."""
    other = LineStyle("#D55E00", 1, "s")
    series = [
        run(10, 20, method="s.1", member=_member("Shared", "s", blocks=[1])),
        run(30, 40, method="s.1-2", member=_member("Shared", "s", blocks=[1, 2])),
        run(50, 60, method="t.7", style=other, member=_member("Both", "t", blocks=[7, 8, 9])),
    ]
    (axis,) = draw("option_line", series).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "1-2", "7-8-9"]
    lines = {c.get_label(): c.lines[0] for c in axis.containers}
    assert lines["Shared"].get_xydata().tolist() == [[0, 15], [1, 35]]
    assert lines["Both"].get_xydata().tolist() == [[2, 55]]
    assert lines["Both"].get_color() == "#D55E00", "a grid has the look of its label"


def test_congruence_by_hand(tmp_path):
    """Groups 0 and 1 lie in clusters 1 and 0 except one image; clusters hold one class each."""
    columns = {"class": ["a"] * 3 + ["b"] * 3, "test": False, "cluster": [1, 1, 1, 0, 0, 0]}
    frame = pd.DataFrame(columns | {"group": [0, 0, 1, 1, 1, 1]})
    tests = frame.assign(test=True, group=5)
    pd.concat([frame, tests]).to_parquet(tmp_path / "g.parquet")
    made = shown(artefact=tmp_path / "g.parquet", member=_member(key_momentum=0.5))
    assert congruence_of_run(made) == pytest.approx(100 * 5 / 6)
    (axis,) = draw("congruence", [made]).axes
    assert axis.containers[0].lines[0].get_xydata().tolist() == [[0.5, pytest.approx(500 / 6)]]


def test_points_in_space_have_the_colour_of_their_accuracy(run):
    places = [(4, 8, 16), (8, 8, 4), (4, 16, 4)]
    series = [
        run(10 * n, 10 * n, method=f"g.{n}", member=_member(**dict(zip("abc", at, strict=True))))
        for n, at in enumerate(places)
    ]
    axis = draw("scatter3d", series).axes[0]
    (points,) = axis.collections
    assert points.get_array().tolist() == [0, 10, 20]
    # positions among each axis' values in the order of the grid: 4, 8; 8, 16; 16, 4
    assert np.transpose(points._offsets3d).tolist() == [[0, 0, 0], [1, 0, 1], [0, 1, 1]]
    assert [axis.get_xlabel(), axis.get_ylabel(), axis.get_zlabel()] == ["a", "b", "c"]
    assert [text.get_text() for text in axis.get_zticklabels()] == ["16", "4"]


def _selections():
    """Return a table in which client 3 takes part in rounds 1 and 4, and client 8 in round 2."""
    columns = {"client": [3, 3, 3, 3, 8, 8], "round": [1, 1, 4, 4, 2, 2], "group": [0, 1] * 3}
    return pd.DataFrame(columns | {"count": [5, 1, 7, 3, 9, 0]})


def test_a_clients_groups_are_averaged_over_its_rounds(tmp_path):
    frame = _selections()
    frame.to_parquet(tmp_path / "a.parquet")
    frame[frame["client"] == 8].to_parquet(tmp_path / "b.parquet")
    series = [shown(method=m, title=m, artefact=tmp_path / f"{m}.parquet") for m in "ab"]
    figure = draw("client_groups", series)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["a\nclient 3, 2 rounds", "b\nclient 8, 1 rounds"]
    assert [bar.get_height() for bar in figure.axes[0].patches] == [6, 2]
    (whiskers,) = figure.axes[0].containers[0].lines[2]
    low, high = whiskers.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((6 - 2**0.5, 6 + 2**0.5))
    assert len({axis.get_ylim() for axis in figure.axes}) == 1
