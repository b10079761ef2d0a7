"""Figures of counted answers: reliability diagrams and confusion matrices, by hand."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedloom.common.receipts import write_receipt
from fedloom.config.settings import ReportedRounds
from fedloom.report import figures
from shown_runs import draw, figure_job, filled, shown

NAMES = ["ant", "bee", "cow"]
# as many as have room at an axis
TWENTY = [f"c{number}" for number in range(20)]


def run_of(folder, name="m", seed=0, names=NAMES):
    """Write a run's files: clients 0 and 1 take part, 2 is held out, -1 is the global test."""
    clients = {"client_id": [0, 1, 2, -1], "participating": [True, True, False, False]}
    evaluation = pd.concat([filled(clients | {"round": n}, "evaluation") for n in (1, 2)])
    # in round 2, client 0 has two images of class 0, and client 1 has two images of class 1
    pairs = [(1, 0, 0, 0, 9), (2, 0, 0, 0, 2), (2, 1, 1, 1, 1), (2, 1, 1, 2, 1), (2, 2, 0, 1, 8)]
    pairs += [(2, -1, 0, 1, 8)]
    confusion = pd.DataFrame(pairs, columns=["round", "client_id", "label", "predicted", "count"])
    bins = [
        (1, 0, 14, 9, 9, 9.0),
        (2, 0, 14, 2, 2, 1.9),
        (2, 1, 7, 2, 1, 1.0),
        (2, 2, 3, 8, 0, 2.0),
    ]
    bins += [(2, -1, 3, 8, 0, 2.0)]
    columns = ["round", "client_id", "bin", "count", "correct", "confidence"]
    files = {"evaluation": evaluation, "confusion": confusion}
    files["calibration"] = pd.DataFrame(bins, columns=columns)
    own = folder / f"{name}{seed}"
    own.mkdir()
    for file, frame in files.items():
        frame.to_parquet(own / f"{file}.parquet")
    (own / "images.arrow").touch()
    write_receipt(own / "images.arrow", classes=list(names))
    paths = {file: own / f"{file}.parquet" for file in files}
    labels = {"method": name, "title": name, "seed": seed, "store": own / "images.arrow"}
    return shown(**paths, **labels, reported=ReportedRounds((1, 2)))


def test_points_are_of_participating_clients_after_the_last_reported_round(tmp_path):
    (axis,) = draw("reliability", [run_of(tmp_path)]).axes
    diagonal, points = axis.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]
    np.testing.assert_allclose(points.get_xydata(), [[50, 50], [95, 100]])
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axis.patches]
    np.testing.assert_allclose(bars, [(700 / 15, 100 / 15, 50), (1400 / 15, 100 / 15, 50)])
    # half of the images are in a bin with a gap of 5 points
    assert [text.get_text() for text in axis.texts] == ["ECE 2.5 %"]


def test_the_images_of_all_seeds_are_drawn_together(tmp_path):
    first, second = (run_of(tmp_path, seed=seed) for seed in (0, 1))
    rows = pd.read_parquet(second.calibration)
    rows.assign(correct=0).to_parquet(second.calibration)
    (axis,) = draw("reliability", [first, second]).axes
    np.testing.assert_allclose(axis.lines[1].get_ydata(), [25, 50])
    # the mean of 2.5 and 72.5; the error of all answers together would be 35
    assert [text.get_text() for text in axis.texts] == ["ECE 37.5 %"]


def test_rows_of_a_confusion_add_up_to_a_hundred_or_are_white(tmp_path):
    panel, bar = draw("confusion", [run_of(tmp_path)]).axes
    (image,) = panel.images
    shares = np.ma.filled(image.get_array(), np.nan)
    np.testing.assert_allclose(shares, [[100, 0, 0], [0, 50, 50], [np.nan] * 3])
    assert image.cmap.name == "cividis" and (image.norm.vmin, image.norm.vmax) == (0, 100)
    assert sorted(text.get_text() for text in panel.texts) == ["100", "50", "50"]
    assert "%" in bar.get_ylabel()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (NAMES, NAMES),
        (["a class of a very long name", "b", "c"], []),
        (TWENTY, TWENTY),
        ([*TWENTY, "one more"], []),
    ],
)
def test_classes_are_named_where_their_names_fit(tmp_path, names, told):
    panel = draw("confusion", [run_of(tmp_path, names=names)]).axes[0]
    for labels in (panel.get_xticklabels(), panel.get_yticklabels()):
        assert [label.get_text() for label in labels] == told


@pytest.mark.parametrize("kind", ["reliability", "confusion"])
def test_nine_methods_are_in_a_picture_that_a_page_can_show(tmp_path, kind):
    runs = [run_of(tmp_path, name=f"method {number}") for number in range(9)]
    outputs = {form: tmp_path / f"f.{form}" for form in ("pdf", "png")}
    figures.write_figure(figure_job(kind), runs, outputs)
    with Image.open(outputs["png"]) as picture:
        assert picture.width <= 1560
    titles = [axis.get_title() for axis in draw(kind, runs).axes]
    assert titles[:9] == [run.title for run in runs]
