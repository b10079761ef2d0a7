"""Check the options of a plugin by the JSON Schemas, with few keys, of its TOML file."""

import math
import re
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from fedloom.common.errors import shortened, suggestion
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import is_number

# a number is finite, since no digest and no optimiser can take infinity; 1.0 is not an integer,
# since it would become a path and a tensor's size; files cannot hold a lone surrogate
JSON_TYPES = {
    "integer": lambda _, v: is_number(v) and isinstance(v, int),
    "number": lambda _, v: is_number(v) and -math.inf < v < math.inf,
    "string": lambda _, v: isinstance(v, str) and not re.search("[\ud800-\udfff]", v),
}
TYPE = {"enum": ["string", "integer", "number", "boolean", "array", "object", "null"]}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems")
# the schema of each key of a schema; that of a list's `items` is a schema itself
KEYS: dict[str, dict[str, Any]] = {
    "type": {"anyOf": [TYPE, {"type": "array", "items": TYPE}]},
    "description": {"type": "string"},
    "default": {},
    "enum": {"type": "array", "minItems": 1},
    # a file of the user's; a text with {}
    "format": {"enum": ["path", "template"]},
    "items": {"type": "object"},
    "uniqueItems": {"type": "boolean"},
    **{key: {"type": "number"} for key in BOUNDS},
}


def check_schemas(schemas: Any, where: KeyPath, required: Sequence[str] = ()) -> None:
    """Check JSON Schemas of options, which have the `required` keys, and their defaults."""
    for name, option in schemas.items():
        _check_schema(option, where / name)
        for key in ("type", "description", *required):
            if key not in option:
                raise (where / name / key).error("is missing")
        if "default" in option:
            check_value(option["default"], option, where / name / "default")


def _check_schema(schema: Any, where: KeyPath) -> None:
    """Check the keys of a JSON Schema, and those of its `items`."""
    check_value(schema, {"type": "object"}, where)
    fill_in(schema, KEYS, where)
    if "items" in schema:
        _check_schema(schema["items"], where / "items")


def fill_in(options: dict[str, Any], schemas: dict[str, dict], where: KeyPath) -> dict[str, Any]:
    """Check options, and return them with the defaults of those that are left out."""
    for name, value in options.items():
        if name not in schemas:
            raise (where / name).error(f"unknown key; {suggestion(name, schemas)}")
        check_value(value, schemas[name], where / name)

    defaults = {name: option.get("default") for name, option in schemas.items()}
    return defaults | options


def check_value(value: Any, schema: dict[str, Any], where: KeyPath) -> None:
    """Check the value at `where` by a JSON Schema."""
    fault = find_fault(value, schema)
    if fault is None:
        return
    for step in fault.steps:
        where = where / step
    raise where.error(fault.message)


class Fault(NamedTuple):
    """What is wrong in a value: the steps that lead there, and what it must have."""

    steps: tuple[str | int, ...]
    message: str


def find_fault(value: Any, schema: dict[str, Any]) -> Fault | None:
    """Return the first fault of a value by a JSON Schema; None if it has none."""
    for error in _validator()(schema).iter_errors(value):
        rule = shortened(f"{error.validator} {error.validator_value!r}", 60)
        message = shortened(f"must have {rule}, got {error.instance!r}")
        return Fault(tuple(error.path), message)
    return None


@cache
def _validator() -> Any:
    """Return a class of validators with JSON_TYPES and the format `template`."""
    # imported here, since it takes 0.1 s
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(JSON_TYPES)
    formats = FormatChecker(())
    formats.checks("template")(lambda v: not isinstance(v, str) or "{}" in v)
    return partial(extend(Draft202012Validator, type_checker=types), format_checker=formats)
