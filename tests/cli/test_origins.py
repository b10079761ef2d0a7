"""A model card states the licences that recipes and timm know."""

import pytest

from fedloom.cli.make import origins
from fedloom.config.settings import BackboneSettings
from fedloom.planning.run_labels import Run

TIMM_NAME = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
DATASETS = {
    "office": {"recipe": "officehome"},
    "both": {"source": "several", "parts": {"a": {"recipe": "mnist_m"}, "b": {"source": "glyphs"}}},
    "four": {"recipe": "four_dataset"},
    "letters": {"source": "glyphs"},
    "gone": {"recipe": "gone.yaml"},
}
NOT_KNOWN = "Of the data: not known to FedLoom; state it here"


def backbone(library: str, weights: str) -> BackboneSettings:
    """Return a backbone of the given library with the given weights."""
    return BackboneSettings("vit", library, {"name": TIMM_NAME, "weights": weights})


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("office", ["OfficeHome: fair use notice", "hemanthdv.org"]),
        ("both", ["MNIST-M: not established"]),
        ("four", ["4-dataset: those of the four", "CINIC-10: CC BY 4.0", "Fashion-MNIST: MIT"]),
        ("letters", [NOT_KNOWN]),
        ("gone", [NOT_KNOWN]),
        (None, [NOT_KNOWN]),
    ],
)
def test_the_card_has_the_licences_that_the_recipes_of_the_data_state(dataset, words):
    config = None
    if dataset is not None:
        config = {"datasets": DATASETS}
    text = origins.licences(config, Run(dataset, "", "", "", 0), backbone("timm", "none"))
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("library", "weights", "says"),
    [
        ("timm", "hub", f"apache-2.0, as timm states for `{TIMM_NAME}`"),
        ("timm", "none", "untrained"),
        ("timm", "mine.safetensors", "not known"),
        ("open_clip", "openai", "not known"),
        ("timm", "workflow/resources/micro_vit.safetensors", "`workflow/resources/micro_vit.md`"),
    ],
)
def test_the_card_has_the_licence_of_weights_that_is_known(library, weights, says):
    text = origins.licences(None, Run("", "", "", "", 0), backbone(library, weights))
    assert f"Of the backbone's weights: {says}" in text
