"""Models of YAML and TOML: errors, their words, and the config as JSON Schema."""

from typing import Annotated

import jsonschema
import pytest
from pydantic import Field

from fedloom.cli.run import bundled_studies
from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import (
    Count,
    Keys,
    Number,
    OneOrMore,
    Several,
    require_other_keys,
    validate,
)
from fedloom.config.config_schema import config_schema
from fedloom.config.reading import read
from fedloom.machine.install import ROOT


class Inner(Keys):
    factor: Annotated[Number, Field(ge=1)]


class Model(Keys):
    count: Count
    inner: Inner | None = None
    words: OneOrMore[str] = "a"
    folders: str | dict[str, str] = "."
    numbers: Several[int] = Field([1])
    shift: bool = False


REFUSED = {
    "an unknown key, with the one that is meant": ({"cuont": 1}, "cuont", "did you mean 'count'"),
    "a key of an inner mapping": ({"count": 1, "inner": {"factr": 1}}, "inner.factr", "'factor'"),
    "a missing key": ({}, "count", "missing"),
    "a fraction for a whole number": ({"count": 1.0}, "count", "an integer, got 1.0"),
    "truth for a number": ({"count": True}, "count", "an integer, got True"),
    "text for a number": ({"count": "1"}, "count", "an integer, got '1'"),
    "a number for truth": ({"count": 1, "shift": 1}, "shift", "a boolean, got 1"),
    "not a number": ({"count": 1, "inner": {"factor": float("nan")}}, "inner.factor", "finite"),
    "too small": ({"count": 0}, "count", "greater than or equal to 1, got 0"),
    "no alternative": ({"count": 1, "folders": 3}, "folders", "a string or a mapping, got 3"),
    "inside of an alternative": ({"count": 1, "folders": {"a": 3}}, "folders.a", "a string, got 3"),
    "inside of a list": ({"count": 1, "words": ["a", 3]}, "words[1]", "a string, got 3"),
    "nothing in a list": ({"count": 1, "numbers": []}, "numbers", "at least 1 item"),
    "the same twice": ({"count": 1, "numbers": [2, 2]}, "numbers", "2 twice"),
    "no mapping": ([1], "", "a mapping, got [1]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_names_the_key_and_what_it_must_be(case):
    value, key, words = REFUSED[case]
    with pytest.raises(FedLoomError) as error:
        validate(Model, value, KeyPath("x.yaml"))
    line = str(error.value)
    assert line.startswith(f"x.yaml: {key}: " if key else "x.yaml: ") and words in line


def test_defaults_are_filled_in_and_nulls_left_out():
    model = validate(Model, {"count": 2, "inner": {"factor": 3}}, KeyPath("x"))
    assert model.plain == {
        "count": 2,
        "inner": {"factor": 3.0},
        "words": "a",
        "folders": ".",
        "numbers": [1],
        "shift": False,
    }


def test_a_key_may_need_another():
    model = Model.model_construct(inner=None, words="a")
    assert require_other_keys(model, inner="words") is model
    with pytest.raises(ValueError, match="words needs inner"):
        require_other_keys(model, words="inner")


def test_every_study_that_ships_is_valid_by_the_schema_for_editors():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in [ROOT / "config.yaml", *bundled_studies.all_studies()]:
        assert [error.message for error in validator.iter_errors(read(file))] == [], file
    assert not validator.is_valid({"study": {"round": 3}})
    assert not validator.is_valid({"tables": {"t": {"kind": "accuracy", "poled": True}}})
    texts = schema["$defs"]["Study"]["properties"]
    assert texts["rounds_per_job"]["description"].startswith("Number of rounds that one job trains")
