"""Captions in the report, and what the classes of kinds declare."""

import json

import pytest
from docutils.core import publish_doctree, publish_parts
from hypothesis import given
from hypothesis import strategies as st

from fedloom.commands import planning
from fedloom.config.output_kinds import SHARED, as_rst
from fedloom.study.jobs import PlottedMethod, from_json, to_json

SHOWS = ("runs", "grid", "grids", "backbones", "datasets", "settings")
KINDS = [(section, name) for section in ("tables", "figures") for name in planning.KINDS[section]]


@pytest.mark.parametrize(("section", "name"), KINDS)
def test_every_kind_has_a_description(section, name):
    kind = planning.KINDS[section][name]
    assert kind.__doc__.rstrip().endswith(".")
    assert kind.shows in SHOWS
    assert kind.shows not in ("grid", "grids") or "methods" in kind.model_fields


TEXT = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1)


@given(TEXT)
def test_any_text_stands_in_a_caption_as_it_is(text):
    shown = publish_doctree(f"Of {as_rst(text)}.", settings_overrides={"report_level": 1}).astext()
    assert shown == f"Of {' '.join(text.split())}."


@pytest.mark.parametrize(("section", "name"), KINDS)
def test_every_caption_is_whole_markup(section, name):
    kind = planning.KINDS[section][name]
    keys = dict.fromkeys(kind.model_fields.keys() - SHARED, "a|b_ *c `d`")
    caption = kind.model_construct(**keys).caption
    page = publish_parts(caption, writer="html", settings_overrides={"report_level": 1})["body"]
    assert "system-message" not in page
    assert page.count("a|b_ *c `d`") == len(keys)


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
    kind = planning.KINDS[section][keys.pop("kind")]
    text = f"{kind.__doc__} Here {shown}." if shown else kind.__doc__
    assert kind(**keys).caption == as_rst(text)


def test_no_title_ends_the_script_that_the_report_holds_it_in():
    method = PlottedMethod("m", "</script><!--", {})
    assert "<" not in to_json(method)
    assert json.loads(to_json(method))["title"] == method.title
    assert from_json(to_json(method), PlottedMethod) == method
