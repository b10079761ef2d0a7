"""Captions in the report, and what the classes of kinds declare."""

import re

import pytest
from pydantic import Field

from fedloom.config.kinds import KINDS
from fedloom.config.output_kinds import RunsTable

SHOWS = ("runs", "grid", "grids", "backbones", "datasets", "settings")
NAMES = [(section, name) for section in ("tables", "figures") for name in KINDS[section]]


@pytest.mark.parametrize(("section", "name"), NAMES)
def test_every_kind_has_a_description(section, name):
    kind = KINDS[section][name]
    assert kind.__doc__.rstrip().endswith(".")
    assert kind.spec.shows in SHOWS
    assert kind.spec.shows not in ("grid", "grids") or "methods" in kind.model_fields


@pytest.mark.parametrize(("section", "name"), NAMES)
def test_a_caption_is_one_sentence_that_a_reader_sees_at_a_glance(section, name):
    caption = KINDS[section][name].model_construct().caption
    sentences = re.findall(r"[.!?](?: [A-Z]|$)", re.sub(r"\(.*?\)", "", caption))
    assert len(sentences) == 1 and len(caption.split()) <= 30, caption


@pytest.mark.parametrize("name", [*KINDS["tables"]])
def test_what_a_table_shows_is_said_in_few_words(name):
    """The caption of a table has this, its title, and over how many seeds it is."""
    kind = KINDS["tables"][name].model_construct(target=60)
    if hasattr(kind, "describe"):
        words = kind.describe([])
        assert len(words.split()) <= 20 and not words.endswith("."), words


class Own(RunsTable):
    """Shows what is our own.

    It is the mean over
    clients.
    """

    log: bool = False
    share: float = 0.5
    rows: dict[str, str] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("keys", "caption"),
    [
        ({}, "Shows what is our own."),
        ({"share": 0.5}, "Shows what is our own."),
        ({"share": 1}, "Shows what is our own. Here share: 1.0."),
        ({"log": True, "share": 2}, "Shows what is our own. Here log: true, share: 2.0."),
        ({"log": True, "rows": {"a": "b"}}, "Shows what is our own. Here log: true."),
        ({"title": "Ours", "methods": ["fedvpt"]}, "Shows what is our own."),  # shown otherwise
    ],
)
def test_a_caption_shows_the_values_other_than_defaults_as_in_yaml(keys, caption):
    assert Own(**keys).caption == caption


def test_what_follows_in_the_docstring_is_folded_away_below():
    assert Own(share=1).details == ["It is the mean over clients."]
    assert KINDS["tables"]["sizes"].model_construct().details == []
