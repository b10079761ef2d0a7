"""Captions in the report, and what the classes of kinds declare."""

import pytest

from fedloom.config.kinds import KINDS

SHOWS = ("runs", "grid", "grids", "backbones", "datasets", "settings")
NAMES = [(section, name) for section in ("tables", "figures") for name in KINDS[section]]


@pytest.mark.parametrize(("section", "name"), NAMES)
def test_every_kind_has_a_description(section, name):
    kind = KINDS[section][name]
    assert kind.__doc__.rstrip().endswith(".")
    assert kind.spec.shows in SHOWS
    assert kind.spec.shows not in ("grid", "grids") or "methods" in kind.model_fields


@pytest.mark.parametrize(
    ("section", "keys", "shown"),
    [
        ("tables", {"kind": "accuracy"}, None),
        ("tables", {"kind": "accuracy", "personalized": False}, "personalized: false"),
        (
            "figures",
            {"kind": "lines", "artefact": "prompt_history", "x": "round", "y": "norm", "log": True},
            "artefact: prompt_history, x: round, y: norm, log: true",
        ),
    ],
)
def test_a_caption_shows_the_values_other_than_defaults_as_in_yaml(section, keys, shown):
    kind = KINDS[section][keys.pop("kind")]
    text = f"{kind.__doc__} Here {shown}." if shown else kind.__doc__
    assert kind(**keys).caption == text
