"""How large figures, their PNGs and their legends are, with many panels, methods and classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedloom.common.receipts import write_receipt
from fedloom.report.figures import chosen_panels, style
from fedloom.report.plotted_runs import PlottedRun
from figure_cases import ENTRIES, series_of_kinds
from refusals import refused
from shown_runs import draw, shown

LONG = "Prompts of every client that mix what "
# the most pixels of a PNG and the most inches of a page, across and up
PIXELS = (1800, 2400)
PAGE = (9.6, 24.0)


@pytest.fixture
def series(tmp_path):
    """Return a run's files of every kind: 5 classes, 2 blocks and the output, 20 images."""
    return series_of_kinds(tmp_path)


def _methods(run: PlottedRun, names: list[str], places: int = 1) -> list[PlottedRun]:
    """Return the run under other names of methods and partitions."""
    runs = []
    for place in range(places):
        for name in names:
            runs.append(
                replace(run, method=name, title=name, partition=f"a long partition {place}")
            )
    return style.with_styles(runs)


def _check_sizes(figure: style.Figure, file: Path) -> None:
    """Require that the PNG keeps to its bounds, and that no legend is higher than a panel."""
    with style.house_style():
        style.save_figure(figure, {"png": file})
        with Image.open(file) as image:
            assert all(side <= most for side, most in zip(image.size, PIXELS, strict=True))
        figure.draw_without_rendering()

    assert figure.get_figwidth() <= PAGE[0]
    for legend in figure.legends:
        box = legend.get_window_extent()
        panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None]
        place = figure.bbox.padded(2)
        assert all(place.contains(*corner) for corner in box.corners())
        assert not any(box.padded(-1).overlaps(axis.bbox) for axis in panels)
        # the ticks and titles of a panel take at most half of its place
        rows = panels[0].get_subplotspec().get_gridspec().nrows
        panel_high = (figure.bbox.height - box.height) / rows
        assert box.height <= panel_high + 1
        assert all(axis.bbox.height > panel_high / 3 for axis in panels)


SHORT = [f"Method {n}" for n in range(40)]
NAMES = {
    "12 methods": SHORT[:12],
    "40 methods": SHORT,
    "long names": [f"{LONG}{n}" for n in range(12)],
    "40 long names": [f"{LONG}{LONG}{n}" for n in range(40)],
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", ["convergence", "accuracy_bars"])
def test_legends_of_many_methods_are_above_and_no_larger_than_a_panel(
    series, tmp_path, kind, names
):
    (run,) = series[kind]
    for places in (1, 5):
        figure = draw(kind, _methods(run, NAMES[names], places), **ENTRIES[kind])
        _check_sizes(figure, tmp_path / "f.png")
        (legend,) = figure.legends
        texts = ["".join(text.get_text().split()) for text in legend.get_texts()]
        assert texts == ["".join(name.split()) for name in NAMES[names]], "no name is cut"


def test_the_letters_of_all_figures_have_one_size_on_paper(series, tmp_path):
    """The PNG of a large figure has fewer dots per inch, and its fonts as many points as any."""
    (run,) = series["convergence"]
    sizes = set()
    for names, places in ((SHORT[:2], 1), (SHORT, 5)):
        figure = draw("convergence", _methods(run, names, places))
        _check_sizes(figure, tmp_path / f"{places}.png")
        sizes.add(figure.axes[0].title.get_fontsize())
        sizes.add(figure.legends[0].get_texts()[0].get_fontsize())
    assert sizes == {9}
    with Image.open(tmp_path / "1.png") as small, Image.open(tmp_path / "5.png") as large:
        assert round(small.info["dpi"][0]) == 400 > large.info["dpi"][0] >= 100


@pytest.mark.parametrize("kind", ["prompt_tsne", "prompt_path", "answers", "client_groups"])
def test_figures_of_many_runs_are_no_larger_than_a_page(series, tmp_path, kind):
    (run,) = series[kind]
    _check_sizes(draw(kind, _methods(run, NAMES["40 long names"][:20])), tmp_path / "f.png")


@pytest.mark.parametrize("kind", ["prompt_tsne", "prompt_path"])
def test_maps_show_nine_runs_of_forty_evenly_spaced(series, kind):
    (run,) = series[kind]
    figure = draw(kind, _methods(run, SHORT))
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == [f"Method {n}" for n in (0, 5, 10, 15, 20, 24, 29, 34, 39)]
    assert figure.get_supxlabel() == "Shown are 9 of 40 runs, evenly spaced."
    assert not draw(kind, [run]).get_supxlabel()


def _tokens(folder, blocks: int, classes: int) -> PlottedRun:
    """Return a run with tokens of eight images at every block."""
    frame = pd.DataFrame({"block": np.repeat(range(1, blocks + 1), 8), "domain": "x"})
    frame["label"] = np.arange(len(frame)) % classes
    frame["vector"] = list(np.random.default_rng(0).normal(size=(len(frame), 4)))
    file = folder / "tokens.parquet"
    frame.to_parquet(file)
    write_receipt(file, classes=[f"class {c}" for c in range(classes)])
    return shown(artefact=file, store=file)


@pytest.mark.parametrize(
    ("methods", "expected_blocks", "expected_methods"),
    [
        (1, [1, 2, 4, 5, 7, 8, 9, 11, 12], [0]),
        (2, [1, 5, 8, 12], [0, 1]),
        (5, [1, 7, 12], [0, 2, 4]),
    ],
)
def test_maps_of_tokens_show_at_most_nine_blocks(
    tmp_path, methods, expected_blocks, expected_methods
):
    run = _tokens(tmp_path, blocks=13, classes=100)
    runs = _methods(run, SHORT[:methods])
    figure = draw("token_tsne", runs, blocks=range(1, 13))
    _check_sizes(figure, tmp_path / "f.png")
    shown_blocks = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert shown_blocks == [f"Input of block {n}" for n in expected_blocks] * len(expected_methods)
    rows = [axis.get_ylabel() for axis in figure.axes if axis.get_ylabel().startswith("Method")]
    if methods > 1:
        assert rows == [f"Method {n}" for n in expected_methods]


def _weights(folder, blocks: int) -> PlottedRun:
    """Return a run with the weights of class prompts for images of 100 classes."""
    columns = {"block": np.repeat(range(1, blocks + 1), 10_000), "weight": 0.01}
    columns["label"] = np.tile(np.repeat(range(100), 100), blocks)
    columns["class"] = np.tile(range(100), 100 * blocks)
    file = folder / "weights.parquet"
    pd.DataFrame(columns).to_parquet(file)
    write_receipt(file, classes=[f"{LONG}{c}" for c in range(100)])
    return shown(artefact=file, store=file)


def test_weights_are_of_at_most_nine_panels_and_blocks_can_be_chosen(tmp_path):
    run = _weights(tmp_path, blocks=12)
    cases = [
        ({"classes": [3, 4, 5, 6, 7]}, [1, 7, 12] * 3),
        ({"classes": [3]}, [1, 2, 4, 5, 7, 8, 9, 11, 12]),
        ({"classes": [3, 99], "blocks": [2, 4]}, [2, 4] * 2),
    ]
    for keys, expected in cases:
        figure = draw("soft_weights", [run], **keys)
        assert [axis.get_title() for axis in figure.axes] == [f"Block {n}" for n in expected]
        _check_sizes(figure, tmp_path / "f.png")
    with refused("weights.parquet", "block 13"):
        draw("soft_weights", [run], classes=[3], blocks=[2, 13])


def test_panels_are_chosen_evenly_from_the_first_to_the_last():
    assert chosen_panels.evenly(range(4)) == [0, 1, 2, 3]
    assert chosen_panels.evenly(range(17)) == [*range(0, 17, 2)]
    for rows in range(1, 30):
        for columns in range(1, 30):
            across = chosen_panels.choose_columns(range(columns), rows)
            up = chosen_panels.choose_rows(range(rows), len(across))
            assert len(across) * len(up) <= 9
            assert len(across) >= min(columns, 3) and across[0] == up[0] == 0
