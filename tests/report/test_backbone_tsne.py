"""t-SNE of the frozen backbone: which images, which block, and which colours."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch

from default_config import default_config
from fedloom.data import store
from fedloom.planning import runs
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.report import block_accuracy
from fedloom.report.plotted_runs import PlottedBackbone
from refusals import refused
from shown_runs import draw


@pytest.fixture
def backbone(tmp_path):
    """Return features of twelve images of four classes, of two blocks and the output.

    The last eight images are test images.
    """
    images = tmp_path / "images.arrow"
    features = tmp_path / "f.safetensors"
    pixel = np.zeros((1, 1, 1), np.uint8)
    examples = [store.Example(pixel, n % 4, n >= 4, "x") for n in range(12)]
    store.write_images(images, examples, (1, 1, 1), ["cat", "cod", "dog", "eel"], "made by a test")
    number = torch.arange(12.0)[:, None]
    inputs = torch.stack([number.repeat(1, 3), 100 + number.repeat(1, 3)], 1)
    safetensors.torch.save_file({"inputs": inputs, "final": -number.repeat(1, 3)}, features)
    return PlottedBackbone("d", "b", tmp_path / "unused", features, images)


def test_tokens_are_those_of_the_block(backbone):
    images = np.array([4, 11])
    for block, expected in ((1, [4, 11]), (2, [104, 111]), (3, [-4, -11])):
        tokens = block_accuracy.class_tokens(backbone.features, block)[images]
        assert tokens.shape == (2, 3) and tokens[:, 0].tolist() == expected
    with refused("f.safetensors", "block 4", "1 to 3"):
        block_accuracy.class_tokens(backbone.features, 4)


FUR = {"cat": "fur", "cod": "fin", "dog": "fur", "eel": "fin"}


def test_test_images_have_the_colour_of_their_superclass(backbone):
    figure = draw(
        "backbone_tsne", [backbone], blocks=[1, 3], superclasses="s.yaml", superclass_of=FUR
    )
    assert [axis.get_title() for axis in figure.axes] == ["Input of block 1", "Output"]
    for axis in figure.axes:
        labels = {points.get_label(): points for points in axis.collections}
        assert {name: len(points.get_offsets()) for name, points in labels.items()} == {
            "fin": 4, "fur": 4,
        }  # fmt: skip
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fin", "fur"]


def test_without_superclasses_the_colours_are_classes(backbone):
    (axis,) = draw("backbone_tsne", [backbone], blocks=[2]).axes
    assert [points.get_label() for points in axis.collections] == ["cat", "cod", "dog", "eel"]


def test_a_class_without_superclass_is_one_line(backbone):
    some = {"cat": "fur", "dog": "fur"}
    with refused("s.yaml", "'cod'"):
        draw("backbone_tsne", [backbone], blocks=[1], superclasses="s.yaml", superclass_of=some)


def test_it_is_made_of_features_and_needs_no_run():
    config = deepcopy(default_config())
    config["figures"] = {"f": {"kind": "backbone_tsne", "blocks": [2]}}
    config["tables"] = {"t": {"kind": "sizes"}}
    config["select"] |= {"tables": ["t"], "figures": ["f"]}
    plan = Plan(resolve(config))
    assert runs.study_runs(plan.settings) == []
    assert plan.shown_files("figure", SimpleNamespace(label="f")) == [
        "results/features/styles/micro_vit.json", "results/datasets/styles/images.json",
    ]  # fmt: skip
