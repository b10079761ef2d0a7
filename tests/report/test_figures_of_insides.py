"""Figures of prototypes, blocks, weights and tokens."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from fedloom.common.receipts import write_receipt
from fedloom.data import store
from fedloom.report import block_accuracy, figures
from fedloom.report.figures import maps, style
from shown_runs import figure_job, shown


def test_nearest_prototype_by_hand():
    # class means of the training images: 0 at 5, 1 at 10, 2 at 20; class 3 has none, and its mean
    # must not be taken for 0, which is nearer to the test image at 2 than any other
    tokens = torch.tensor([[4.0], [6.0], [10.0], [20.0], [2.0], [16.0], [21.0], [30.0]])
    labels = torch.tensor([0, 0, 1, 2, 0, 1, 2, 3])
    test = torch.tensor([False] * 4 + [True] * 4)
    # nearest: 0, 2 (wrong), 2, 2 (wrong); with all four classes in the top five, every one is hit
    assert block_accuracy.nearest_prototype(tokens, labels, test) == (50, 100)


def test_the_nearest_class_mean_is_that_of_the_euclidean_distance():
    # class means (0, 0, 4.5), (3, 3, 0) and (2.9, 2.9, 2.9); the test images lie at the origin, to
    # which the first is nearest by absolute, the last by largest differences
    means = torch.tensor([[0.0, 0.0, 4.5], [3.0, 3.0, 0.0], [2.9, 2.9, 2.9]])
    apart = torch.tensor([0.1, -0.2, 0.3])
    of_class_1 = means[1] + torch.stack([-apart, apart])
    tokens = torch.cat([means, of_class_1, torch.zeros(3, 3)])  # one, three and one image to train
    labels = torch.tensor([0, 1, 2, 1, 1, 0, 1, 2])
    test = torch.arange(8) >= 5
    top_1, _ = block_accuracy.nearest_prototype(tokens, labels, test)
    assert top_1 == pytest.approx(100 / 3), "the image of class 1"
    wrong = labels.clone()
    wrong[5:] = torch.tensor([0, 0, 2])
    assert block_accuracy.nearest_prototype(tokens, wrong, test)[0] == 0


def test_block_accuracy_of_a_store(tmp_path):
    rows = [(0, False), (1, False), (0, True), (1, True)]
    examples = [store.Example(np.zeros((1, 1, 1), np.uint8), y, t, "x") for y, t in rows]
    store.write_images(tmp_path / "s.arrow", examples, (1, 1, 1), ["a", "b"], "made by a test")
    images = store.ImageStore(tmp_path / "s.arrow")
    tokens = torch.tensor([0.0, 1, 0, 1])[:, None]
    inputs = torch.stack([torch.zeros(4, 1), 1 - tokens * torch.tensor([[1], [1], [1], [0]])], 1)
    safetensors.torch.save_file({"inputs": inputs, "final": tokens}, tmp_path / "f.safetensors")
    block_accuracy.write_accuracies(images, tmp_path / "f.safetensors", tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["block"].tolist() == [1, 2, 3]
    # block 2: the last image lies on class 0's mean; block 3: all as in training
    assert found["top1"].tolist()[1:] == [50, 100]


def weights_table(path, blocks, count, label):
    """Write weights 0.5 of one class's images on their own prompt at all blocks; return a run."""
    columns = {"block": np.repeat(blocks, count), "class": np.tile(range(count), len(blocks))}
    frame = pd.DataFrame(columns | {"label": label, "weight": 0.5 / (count - 1)})
    frame.loc[frame["class"] == label, "weight"] = 0.5
    frame.to_parquet(path)
    write_receipt(path, classes=[f"class {c}" for c in range(count)])
    return shown(artefact=path, store=path)


@pytest.mark.parametrize("count", [5, 100])
def test_soft_weights_are_bars_by_block_with_the_names_of_classes(tmp_path, count):
    run = weights_table(tmp_path / "w.parquet", [3, 4, 7], count, label=2)
    with style.house_style():
        figure = figures.draw_figure(figure_job("soft_weights", classes=[2]), [run])
        assert [axis.get_title() for axis in figure.axes] == ["Block 3", "Block 4", "Block 7"]
        figure.draw_without_rendering()
        for axis in figure.axes:
            dark = [bar for bar in axis.patches if bar.get_facecolor()[3] == 1]
            assert len(axis.patches) == count and not axis.lines
            assert [bar.get_width() for bar in dark] == [0.5]
        labels = {round(text.get_position()[1]): text for text in figure.axes[0].get_yticklabels()}
        assert labels[2].get_text() == "class 2", "the true class is named, whatever is left out"
        boxes = [labels[at].get_window_extent() for at in sorted(labels)]
        assert len(boxes) == min(count, 20)
        assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))


def test_twenty_classes_of_a_token_map_can_be_told_apart(tmp_path):
    looks = [style.of_class(c) for c in range(style.MOST_CLASS_COLOURS)]
    assert style.MOST_CLASS_COLOURS == 20 == len({tuple(look.values()) for look in looks})
    draw = np.random.default_rng(0)
    rows = {"block": 1, "label": np.arange(60) % 20, "domain": ["x", "y"] * 30}
    frame = pd.DataFrame(rows | {"vector": list(draw.normal(size=(60, 4)))})
    run = weights_table(tmp_path / "t.parquet", [1], 20, 0)
    frame.to_parquet(run.artefact)
    with style.house_style():
        figure = figures.draw_figure(figure_job("token_tsne", blocks=[1]), [run])
        assert len(figure.axes) == 1, "no bar of colours"
        (legend,) = figure.legends
        figure.draw_without_rendering()
        classes = [f"class {c}" for c in range(20)]
        texts = [text.get_text() for text in legend.get_texts()]
        assert sorted(texts) == sorted([*classes, "domain x", "domain y"])
        panel = figure.axes[0].bbox
        box = legend.get_window_extent()
        assert not box.padded(-1).overlaps(panel)
        assert all(figure.bbox.padded(1).contains(*corner) for corner in box.corners())
        assert panel.height > 100, "legends take no room of the panels"


def test_large_sets_of_vectors_are_thinned_evenly():
    chosen = maps.evenly(5001)
    assert len(set(chosen)) == len(chosen) == maps.POINTS == 2000
    assert chosen[[0, -1]].tolist() == [0, 5000]
