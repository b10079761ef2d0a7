"""A model card states the licences that recipes, sources and timm know."""

import pytest

from fedloom.cli.make import origins
from fedloom.config.settings import BackboneSettings
from fedloom.data.sources.glyphs import Glyphs
from fedloom.data.sources.sklearn_digits import SklearnDigits
from fedloom.machine.install import ROOT
from fedloom.planning.run_labels import Run

TIMM_NAME = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
DATASETS = {
    "office": {"recipe": "officehome"},
    "both": {
        "source": "several",
        "parts": {
            "a": {"recipe": "mnist_m"},
            "b": {"source": "glyphs"},
            "c": {"source": "folder"},
        },
    },
    "four": {"recipe": "four_dataset"},
    "letters": {"source": "glyphs"},
    "mine": {"source": "folder", "root": "photos"},
    "gone": {"recipe": "gone.yaml"},
}
NOT_KNOWN = "Of the data: not stated where FedLoom could read it; state it here"


def backbone(library: str, weights: str) -> BackboneSettings:
    """Return a backbone of the given library with the given weights."""
    return BackboneSettings("vit", library, {"name": TIMM_NAME, "weights": weights})


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("office", ["OfficeHome: fair use notice", "hemanthdv.org"]),
        (
            "both",
            [
                "- Of the data `a`: MNIST-M: not established",
                "- Of the data `b`: the images contain shapes of the fonts DejaVu",
                "- Of the data `c`: not stated",
            ],
        ),
        ("four", ["4-dataset: those of the four", "CINIC-10: CC BY 4.0", "Fashion-MNIST: MIT"]),
        ("letters", ["- Of the data: the images contain shapes of the fonts DejaVu", "STIX"]),
        ("mine", [NOT_KNOWN]),
        ("gone", [NOT_KNOWN]),
        (None, [NOT_KNOWN]),
    ],
)
def test_the_card_has_the_licences_that_recipes_and_sources_state(dataset, words):
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
        ("timm", "mine.safetensors", "not stated"),
        ("open_clip", "openai", "not stated"),
        ("timm", "workflow/resources/micro_vit.safetensors", "`workflow/resources/micro_vit.md`"),
    ],
)
def test_the_card_has_the_licence_of_weights_that_is_known(library, weights, says):
    text = origins.licences(None, Run("", "", "", "", 0), backbone(library, weights))
    assert f"Of the backbone's weights: {says}" in text


@pytest.mark.parametrize("source", [Glyphs, SklearnDigits])
def test_the_data_card_of_a_source_states_the_same_licence(source):
    assert f"| licence | {source.licence} |" in (ROOT / "docs/data-cards.md").read_text()
