"""Options of plugins are checked by the JSON Schemas that their TOML files give."""

import math
import re

import pytest

from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import KeyPath
from fedloom.hooks.options import check_schemas, check_value, fill_in

OPTIONS = KeyPath("file") / "options"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "a"], [1, None, "\ud800"]),
        ({"type": "integer"}, [0, -3, 10**400], [1.0, True, "1"]),
        ({"type": "number"}, [0, 0.5, 10**400], [math.inf, math.nan, False, "1"]),
        ({"type": "boolean"}, [True], [0, "true"]),
        ({"type": ["integer", "null"]}, [1, None], [0.5]),
        ({"enum": ["a", "b"]}, ["a"], ["c"]),
        ({"type": "number", "minimum": 1, "maximum": 2}, [1, 2], [0.9, 2.1]),
        ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, [1.5], [1, 2]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
        ({"type": "array", "uniqueItems": True}, [[1, 2]], [[1, 2, 1]]),
        ({"type": "array", "items": {"type": "integer", "minimum": 1}}, [[1]], [[0], ["a"]]),
        ({"type": "string", "format": "template"}, ["a {}"], ["a"]),
    ],
)
def test_a_value_fits_or_is_refused_by_its_key(schema, good, bad):
    for value in good:
        check_value(value, schema, OPTIONS / "x")
    for value in bad:
        with pytest.raises(FedLoomError, match=r"^file: options\.x(\[0\])?: must .*, got "):
            check_value(value, schema, OPTIONS / "x")


@pytest.mark.parametrize(
    ("schema", "value", "line"),
    [
        ({"type": ["integer", "null"]}, 0.5, "must be an integer or null, got 0.5"),
        ({"type": "array"}, "a", "must be a list, got 'a'"),
        ({"enum": ["a", "b"]}, "c", "must be one of 'a', 'b', got 'c'"),
        ({"minimum": 1}, 0, "must be greater than or equal to 1, got 0"),
        ({"exclusiveMaximum": 2}, 2, "must be less than 2, got 2"),
        ({"type": "array", "minItems": 3}, [1], "must have at least 3 items, got [1]"),
        ({"type": "array", "uniqueItems": True}, [1, 1], "must hold each item once, got [1, 1]"),
        ({"format": "template"}, "a", "must have format 'template', got 'a'"),
    ],
)
def test_the_error_says_what_a_value_must_be_in_the_words_of_the_configs_errors(
    schema, value, line
):
    with pytest.raises(FedLoomError, match=f"^file: options.x: {re.escape(line)}$"):
        check_value(value, schema, OPTIONS / "x")


def test_options_that_are_left_out_have_their_defaults():
    schemas = {"a": {"type": "integer", "default": 1}, "path": {"type": "string"}}
    assert fill_in({"path": "x"}, schemas, OPTIONS) == {"a": 1, "path": "x"}
    with pytest.raises(
        FedLoomError, match=r"^file: options\.pth: unknown key; did you mean 'path'\?$"
    ):
        fill_in({"pth": "x"}, schemas, OPTIONS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pattern", "("),
        ("type", "numeric"),
        ("type", ["numeric"]),
        ("minimum", "x"),
        ("enum", []),
        ("format", "uri"),
        ("items", {"type": "numeric"}),
        ("default", "x"),
    ],
)
def test_a_schema_that_is_wrong_is_refused_by_its_key(key, value):
    option = {"type": "integer", "description": "x", "default": 1} | {key: value}
    with pytest.raises(FedLoomError, match=rf"^file: options\.x\.{key}"):
        check_schemas({"x": option}, OPTIONS)


@pytest.mark.parametrize("key", ["type", "description", "default"])
def test_a_key_that_every_option_has_is_missed(key):
    option = {"type": "integer", "description": "x", "default": 1}
    del option[key]
    with pytest.raises(FedLoomError, match=rf"^file: options\.x\.{key}: is missing$"):
        check_schemas({"x": option}, OPTIONS, ("default",))
