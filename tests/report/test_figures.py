"""Figures: what they show, by hand, and that each kind draws the same file every time."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.receipts import write_receipt
from fedloom.config.kinds import KINDS
from fedloom.report import figures, metrics
from fedloom.report.figures import convergence, maps, style
from fedloom.report.plotted_runs import PlottedBackbone
from figure_cases import CLASSES, ENTRIES, artefact_table, series_of_kinds
from shown_runs import draw, figure_job, filled, shown


@pytest.fixture
def series(tmp_path):
    """Return a run's files of every kind: 5 classes, 2 blocks and the output, 20 images."""
    return series_of_kinds(tmp_path)


@pytest.mark.parametrize("kind", ENTRIES)
def test_every_kind_draws_the_same_bytes_twice(kind, series, tmp_path):
    job = figure_job(kind, **ENTRIES[kind])
    forms = ("pdf", "png") if kind == "convergence" else ("pdf",)
    once, again = ({form: tmp_path / f"{name}.{form}" for form in forms} for name in "ab")
    for paths in (once, again):
        figures.write_figure(job, series[kind], paths)
    assert all(once[form].read_bytes() == again[form].read_bytes() for form in forms)
    assert once["pdf"].read_bytes().startswith(b"%PDF")
    assert not list(tmp_path.glob("*.fedloom-tmp"))


# a class, a domain, a column or a title may be called so, and matplotlib reads it as a formula
NASTY = r"$x_{$ \frac{ 50% #1 & ~^ \ {"


HIDDEN = "_hidden $$"  # matplotlib leaves such a label out of a legend


NAMED = ("convergence", "shots", "lines", "bars", "accuracy_bars")  # legends of methods' titles


@pytest.mark.parametrize(
    ("kind", "text"),
    [*((kind, NASTY) for kind in ENTRIES), *((k, HIDDEN) for k in (*NAMED, "token_tsne"))],
)
def test_any_text_is_drawn_as_it_is(kind, text, series):
    """The text is a title, a dataset's label, a class, a domain, and the name of a column."""
    (run,) = series[kind]
    settings = dict(ENTRIES[kind])
    if kind in ("soft_weights", "token_tsne", "answers"):
        write_receipt(run.store, classes=[f"{text}{name}" for name in CLASSES])
    if isinstance(run, PlottedBackbone):
        runs = [run, replace(run, dataset=text)]
    else:
        for path in filter(None, (run.artefact, run.evaluation)):
            frame = pd.read_parquet(path)
            for column in {"domain", "class"} & set(frame):
                if kind != "soft_weights":  # its classes are numbers
                    frame[column] = [f"{text}{value}" for value in frame[column]]
            frame.rename(columns={"size": text}).to_parquet(path)
        run = replace(run, title=text)
        runs = [run, replace(run, dataset=text, method="n", title=f"{text} n")]
    settings = {key: text if value == "size" else value for key, value in settings.items()}
    with style.house_style():
        figure = figures.draw_figure(figure_job(kind, **settings), runs)
        figure.draw_without_rendering()
        shown = [part.get_text() for part in figure.findobj(Text) if part.get_visible()]
    assert any(text in part for part in shown)
    if kind in ("soft_weights", "token_tsne"):
        assert {f"{text}{name}" for name in CLASSES} <= {part.strip() for part in shown}
    if kind in NAMED:
        assert f"{text} n" in [part.strip() for part in shown], "in the legend"


def test_every_kind_draws():
    assert set(ENTRIES) == set(KINDS["figures"])


def test_bands_are_mean_and_deviation_over_seeds(tmp_path):
    runs = []
    for seed, correct in enumerate([(2, 5), (4, 5)]):
        columns = {"round": [1, 2, 1, 2], "participating": [True, True, False, False]}
        columns |= {"client_id": [3, 3, 4, SERVER_MODEL], "num_test": 10, "personalized": False}
        path = artefact_table(
            tmp_path / f"{seed}.parquet", columns | {"num_correct": [*correct, 0, 9]}
        )
        runs.append(shown(evaluation=path))
    accuracy, overall = (convergence.Convergence(metric=m) for m in ("accuracy", "global"))
    band = metrics.over_seeds(runs, accuracy.curve)
    assert band["mean"].tolist() == [30, 50]
    assert band["std"].tolist() == pytest.approx([200**0.5, 0])
    assert metrics.over_seeds(runs[:1], accuracy.curve)["std"].isna().all()
    assert overall.curve(runs[0]).to_dict() == {2: 90}


def test_an_artefacts_lines_are_bands_over_seeds_too(tmp_path):
    """The mean of 6 and 10 lies at 8, the band's edges a deviation of 8^0.5 away."""
    runs = []
    for seed, sizes in enumerate([(4, 6), (4, 10)]):
        path = artefact_table(tmp_path / f"{seed}.parquet", {"round": [0, 1], "size": sizes})
        runs.append(shown(artefact=path))
    (axis,) = draw("lines", runs, **ENTRIES["lines"], log=True).axes
    assert axis.lines[0].get_ydata().tolist() == [4, 8] and axis.get_yscale() == "log"
    edges = axis.collections[0].get_paths()[0].vertices
    assert sorted(set(edges[edges[:, 0] == 1, 1])) == pytest.approx([8 - 8**0.5, 8 + 8**0.5])


def test_all_rounds_lie_in_one_map(series):
    """Three equal prompts of every round stay together, so their centroids do not jump."""
    drawn = np.random.default_rng(1).normal(size=(3, 6))
    rounds = np.repeat(range(4), 3)
    vectors = list(np.tile(drawn, (4, 1)))
    (run,) = series["prompt_path"]
    artefact_table(run.artefact, {"round": rounds, "vector": vectors})
    found = maps.embedding_frame(run)
    assert found["round"].tolist() == rounds.tolist()
    places = found[["x", "y"]].to_numpy().reshape(4, 3, 2)
    within = np.ptp(places, axis=0).max()
    between = min(np.linalg.norm(places[0, a] - places[0, b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert within < between


def test_loss_is_that_of_training(tmp_path):
    path = artefact_table(tmp_path / "r.parquet", {"round": [1, 2], "train_loss": [2.0, 1.0]})
    loss = convergence.Convergence(metric="loss")
    assert loss.curve(shown(rounds=path)).to_dict() == {1: 2.0, 2: 1.0}


def test_shares_of_groups_are_over_a_clients_rounds_and_a_rounds_clients(series):
    images = [axis.images[0] for axis in draw("group_counts", series["group_counts"]).axes[:2]]
    by_client, by_round = (np.asarray(image.get_array()).tolist() for image in images)
    assert by_client == [[1, 0], [3 / 8, 5 / 8]]
    assert by_round == [[10 / 12, 2 / 12], [0.25, 0.75]]


def test_lines_average_the_rows_of_one_x_and_bars_go_by_method(tmp_path):
    runs = []
    for method, seed, sizes in (("m", 0, [1, 3, 8]), ("m", 1, [2, 2, 4]), ("n", 0, [9, 9, 9])):
        path = artefact_table(
            tmp_path / f"{method}{seed}.parquet", {"round": [0, 0, 1], "size": sizes}
        )
        runs.append(shown(method=method, seed=seed, artefact=path))
    columns = {"artefact": "x", "x": "round", "y": "size"}
    (axis,) = draw("bars", runs, **columns).axes
    assert [bar.get_height() for bar in axis.patches] == [2, 6, 9, 9]
    bottom, top = axis.collections[0].get_segments()[1]
    assert [bottom[1], top[1]] == pytest.approx([6 - 8**0.5, 6 + 8**0.5])
    (axis,) = draw("lines", runs[:2], **columns).axes
    assert axis.lines[0].get_xydata().tolist() == [[0, 2], [1, 6]]


@pytest.mark.parametrize(
    ("column", "line"),
    [("sise", "no column 'sise'; did you mean 'size'"), ("vector", "'vector' must hold numbers")],
)
def test_a_column_that_cannot_be_drawn_is_one_line(tmp_path, column, line):
    path = artefact_table(tmp_path / "a.parquet", {"size": [1], "vector": [[1, 2]]})
    with pytest.raises(FedLoomError, match=line):
        draw("scatter", [shown(artefact=path)], x="size", y=column)


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_what_is_averaged_must_be_numbers(tmp_path, kind):
    path = artefact_table(tmp_path / "a.parquet", {"round": [0, 1], "name": ["a", "b"]})
    with pytest.raises(FedLoomError, match="column 'name' must hold numbers"):
        draw(kind, [shown(artefact=path)], x="round", y="name")


def test_a_colour_means_the_same_number_in_every_panel(tmp_path):
    runs = []
    for seed, top in ((0, 4), (1, 400)):
        columns = {"round": [0, 1], "size": [1, 2], "count": [0, top]}
        path = artefact_table(tmp_path / f"{seed}.parquet", columns)
        runs.append(shown(seed=seed, artefact=path))
    figure = draw("scatter", runs, x="round", y="size", colour="count")
    panels = [axis.collections[0] for axis in figure.axes[:2]]
    assert [panel.get_clim() for panel in panels] == [(0, 400), (0, 400)]
    figure.draw_without_rendering()
    assert not np.allclose(panels[0].get_facecolor()[1], panels[1].get_facecolor()[1])


def test_ticks_are_whole_numbers_where_x_is(tmp_path):
    ticks = []
    for xs in ([0, 1], [0.0, 0.25]):
        path = artefact_table(tmp_path / f"{xs[1]}.parquet", {"x": xs, "size": [1, 2]})
        (axis,) = draw("lines", [shown(artefact=path)], x="x", y="size").axes
        ticks.append([tick % 1 == 0 for tick in axis.get_xticks()])
    assert all(ticks[0]) and not all(ticks[1])


@pytest.mark.parametrize(
    ("places", "rows", "columns"),
    [(("p", "q", "r"), 2, 3), (("p", "q", "r", "s"), 4, 2)],
)
def test_the_panels_of_a_method_are_one_row_or_one_column(places, rows, columns):
    """PFPT's Figure 5 shows two methods in three divisions of the same data."""
    runs = [shown(partition=place, method=m, title=m) for place in places for m in "ab"]
    _, axes = style.by_run(runs)
    shape = axes[0].get_gridspec()
    assert (shape.nrows, shape.ncols) == (rows, columns)
    for run, axis in zip(runs, axes, strict=True):
        spot = axis.get_subplotspec()
        cell = (spot.rowspan.start, spot.colspan.start)
        expected = ("ab".index(run.method), places.index(run.partition))
        assert (cell if columns == 3 else cell[::-1]) == expected
        assert axis.get_title() == f"{run.partition}, {run.method}"


def test_panels_of_runs_that_are_no_table_follow_each_other():
    """Method b was not run on q, so neither rows nor columns could be full."""
    runs = [shown(), shown(method="b"), shown(partition="q"), shown(partition="r")]
    _, axes = style.by_run(runs)
    assert (axes[0].get_gridspec().nrows, axes[0].get_gridspec().ncols) == (2, 3)


def test_a_loss_that_is_another_is_named_below_the_panels(tmp_path):
    """SGPT trains two blocks in a round, and reports a mean over the steps of both."""
    filled({"round": [1, 2], "train_loss": [2.0, 1.0]}, "rounds").to_parquet(tmp_path / "r.parquet")
    plain = shown(rounds=tmp_path / "r.parquet")
    other = replace(plain, method="o", title="Other", other_loss="it is a mean of " + "steps " * 20)
    assert draw("convergence", [plain], metric="loss").get_supxlabel() == ""
    figure = draw("convergence", [plain, other], metric="loss")
    below = figure.get_supxlabel()
    assert " ".join(below.split()).startswith(
        "Other's loss is not comparable: it is a mean of steps"
    )
    with style.house_style():
        figure.draw_without_rendering()
        (text,) = [each for each in figure.texts if each.get_text() == below]
        place = text.get_window_extent()
        panel = figure.axes[0].get_tightbbox()
        assert place.x0 >= 0 and place.x1 <= figure.bbox.width and place.y1 <= panel.y0


@pytest.mark.parametrize("low", [0.13, 470])
@pytest.mark.parametrize("fold", [1.2, 4.9, 5.1, 95, 110, 1e6])
def test_labels_of_a_logarithmic_axis_do_not_touch(low, fold):
    with style.house_style():
        figure, (axis,) = style.panels(1)
        for row in range(6):
            axis.plot([0, 1], [low, low * fold], label=f"A method with a long name, {row}")
        style.log_scale(axis)
        style.legend(figure, [axis])
        figure.draw_without_rendering()
        labels = [text for text in axis.get_yticklabels(which="both") if text.get_text()]
        boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.y0)
        assert len(boxes) >= 2
        assert all(below.y1 < above.y0 for below, above in pairwise(boxes))


@pytest.mark.parametrize("count", [2, 5, 9, 20])
def test_every_legend_lies_within_its_figure_and_apart_from_the_panels(count):
    with style.house_style():
        figure, axes = style.panels(1)
        for k in range(count):
            axes[0].plot([0, 1], [k, 1], label=f"A method with a long name, {k}")
        style.legend(figure, axes)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        place = legend.get_window_extent()
        panel = axes[0].get_window_extent()
        assert len(legend.get_texts()) == count
        assert all(figure.bbox.padded(1).contains(*corner) for corner in place.corners())
        assert not place.padded(-1).overlaps(panel)
        assert panel.height > 2 * figure.dpi, "the figure grows by the legend's height"
