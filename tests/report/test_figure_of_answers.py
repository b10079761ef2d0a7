"""The figure `answers`: test images in frames, with their classes and the answers of clients."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from fedloom.common.receipts import write_receipt
from fedloom.report import figures
from figure_cases import answers_table
from shown_runs import draw, figure_job, shown


@pytest.fixture
def run(tmp_path):
    """Return a run with answers to three wide images; the second answer is wrong."""
    answers = answers_table(
        (4, 2), label=[0, 1, 2], predicted=[0, 2, 2], probability=[0.994, 0.4, 1.0]
    )
    file = tmp_path / "answers.parquet"
    answers.to_parquet(file)
    names = ["a", "of several words that have no room in three lines beside an image", "c"]
    write_receipt(file, classes=names)
    return shown(artefact=file, store=file)


def test_right_and_wrong_answers_differ_in_colour_and_sign(run):
    (axis,) = draw("answers", [run]).axes
    frames = [to_hex(patch.get_edgecolor()) for patch in axis.patches]
    assert frames == ["#009e73", "#d55e00", "#009e73"]
    long = "of several words\nthat have no\nroom in three \u2026"
    answers = ["a", "\u2713 99 %\na", long, "\u2717 40 %\nc", "c", "\u2713 100 %\nc"]
    assert [text.get_text() for text in axis.texts] == answers
    colours = [to_hex(text.get_color()) for text in axis.texts]
    assert colours[1::2] == frames


def test_an_image_keeps_its_proportions_within_its_frame(run):
    (axis,) = draw("answers", [run]).axes
    for place, (image, frame) in enumerate(zip(axis.images, axis.patches, strict=True)):
        left, right, bottom, top = image.get_extent()
        assert (right - left) / (top - bottom) == pytest.approx(2)
        assert np.mean([left, right]) == pytest.approx(place)
        assert frame.get_bbox().extents == pytest.approx([left, bottom, right, top])


def test_every_method_has_a_row_with_its_title(run):
    figure = draw("answers", [run, shown(**vars(run) | {"method": "n", "title": "N"})])
    assert [axis.get_title("left") for axis in figure.axes] == ["M", "N"]
    assert draw("answers", [run]).axes[0].get_title("left") == "M"


def test_its_png_is_no_wider_than_1800_pixels(run, tmp_path):
    """Saving takes most of the time of a figure of small pictures, which is 7.4 inches wide."""
    files = {"png": tmp_path / "answers.png", "pdf": tmp_path / "answers.pdf"}
    figures.write_figure(figure_job("answers"), [run], files)
    with Image.open(files["png"]) as image:
        assert image.info["dpi"] == pytest.approx((243, 243), abs=0.01)
        width, _ = image.size
    assert width == round(243 * 7.4) <= 1800


def test_a_pdf_has_each_picture_as_it_is(run, tmp_path):
    file = tmp_path / "answers.pdf"
    figures.write_figure(figure_job("answers"), [run], {"pdf": file})
    content = file.read_bytes()
    assert content.count(b"/Subtype /Image") == 3
    assert len(re.findall(rb"/Width 4\s", content)) == 3
    assert len(re.findall(rb"/Height 2\s", content)) == 3
