"""Check options of plugins against the JSON Schemas in their TOML files.

A schema may use only the few keys in KEYS.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from fedloom.common.errors import shorten, suggestion
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import is_number

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

# Types that are stricter than in JSON Schema:
# - A number is finite, because digests and optimisers cannot take infinity.
# - 1.0 is not an integer, because an integer may become a path or the size of a tensor.
# - A string has no lone surrogate, because a file cannot hold one.
JSON_TYPES = {
    "integer": lambda _, v: is_number(v) and isinstance(v, int),
    "number": lambda _, v: is_number(v) and -math.inf < v < math.inf,
    "string": lambda _, v: isinstance(v, str) and not re.search("[\ud800-\udfff]", v),
}
TYPE = {"enum": ["string", "integer", "number", "boolean", "array", "object", "null"]}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems")
# the schema of each key that an option's schema may have; `items` holds another such schema
KEYS: dict[str, JsonDict] = {
    "type": {"anyOf": [TYPE, {"type": "array", "items": TYPE}]},
    "description": {"type": "string"},
    "default": {},
    "enum": {"type": "array", "minItems": 1},
    # "path": a file of the user's; "template": a text that contains {}
    "format": {"enum": ["path", "template"]},
    "items": {"type": "object"},
    "uniqueItems": {"type": "boolean"},
    **{key: {"type": "number"} for key in BOUNDS},
}


def check_schemas(
    schemas: dict[str, JsonDict], where: KeyPath, required: Sequence[str] = ()
) -> None:
    """Check the JSON Schemas of options by name, and their defaults.

    Each schema must have a type, a description and the `required` keys.

    Raises:
        FedLoomError: a schema or a default is wrong.
    """
    for name, option in schemas.items():
        _check_schema(option, where / name)
        for key in ("type", "description", *required):
            if key not in option:
                raise (where / name / key).error("is missing")
        if "default" in option:
            check_value(option["default"], option, where / name / "default")


def _check_schema(schema: JsonDict, where: KeyPath) -> None:
    """Check the keys of a JSON Schema, and the schema in its `items`."""
    check_value(schema, {"type": "object"}, where)
    fill_in(schema, KEYS, where)
    if "items" in schema:
        _check_schema(schema["items"], where / "items")


def fill_in(options: JsonDict, schemas: dict[str, JsonDict], where: KeyPath) -> JsonDict:
    """Check the given options, and return them with defaults for the missing ones.

    Raises:
        FedLoomError: an option is unknown, or its value does not fit its schema.
    """
    for name, value in options.items():
        if name not in schemas:
            raise (where / name).error(f"unknown key; {suggestion(name, schemas)}")
        check_value(value, schemas[name], where / name)

    defaults = {name: option.get("default") for name, option in schemas.items()}
    return defaults | options


def check_value(value: JsonValue, schema: JsonDict, where: KeyPath) -> None:
    """Check the value at `where` against a JSON Schema.

    Raises:
        FedLoomError: the value does not fit.
    """
    fault = find_fault(value, schema)
    if fault is None:
        return
    for step in fault.steps:
        where = where / step
    raise where.error(fault.message)


class _Fault(NamedTuple):
    """A fault in a value: the keys and indices that lead to it, and a message."""

    steps: tuple[str | int, ...]
    message: str


def find_fault(value: JsonValue, schema: JsonDict) -> _Fault | None:
    """Return the first fault of a value under a JSON Schema; None if there is none."""
    for error in _validator()(schema).iter_errors(value):
        rule = _sentence(str(error.validator), error.validator_value)
        return _Fault(tuple(error.path), shorten(f"{rule}, got {error.instance!r}"))
    return None


# the message for each rule of a JSON Schema; the value of the rule takes the place of {}
SENTENCES = {
    "minimum": "must be greater than or equal to {}",
    "maximum": "must be less than or equal to {}",
    "exclusiveMinimum": "must be greater than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "pattern": "must match pattern '{}'",
    "const": "must be {!r}",
}
TYPE_NAMES = {
    "boolean": "a boolean",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}


def _sentence(rule: str, allowed: object) -> str:
    """Return what a rule of a JSON Schema demands, as a sentence without its end.

    `allowed` is the rule's value, such as 1 for the rule `minimum`.
    """
    if rule == "type":
        types = allowed
        if not isinstance(types, list):
            types = [types]
        return f"must be {' or '.join(TYPE_NAMES[str(each)] for each in types)}"

    if rule == "enum" and isinstance(allowed, list):
        return shorten(f"must be one of {', '.join(map(repr, allowed))}", 100)

    if rule == "uniqueItems":
        return "must hold each item once"

    sentence = SENTENCES.get(rule)
    if sentence is None:
        return shorten(f"must have {rule} {allowed!r}", 80)
    return sentence.format(allowed)


@cache
def _validator() -> Callable[[JsonDict], "Validator"]:
    """Return a class of validators that knows JSON_TYPES and the format `template`."""
    # imported here, because the import takes 0.1 s
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.validators import extend

    types = Draft202012Validator.TYPE_CHECKER.redefine_many(JSON_TYPES)
    formats = FormatChecker(())
    formats.checks("template")(lambda v: not isinstance(v, str) or "{}" in v)
    return partial(extend(Draft202012Validator, type_checker=types), format_checker=formats)
