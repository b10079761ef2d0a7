"""Check the options of a plugin by the JSON Schemas of its TOML file.

A schema has few keys on purpose: a `$ref` may lead nowhere, and to match a `pattern` may take
longer than a person waits.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from fedloom.common.errors import FedLoomError, shortened, suggestion

# a number is finite, since no digest and no optimiser can take infinity; 1.0 is not an integer,
# since it would become a path and a tensor's size; files cannot hold a lone surrogate
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str) and not any("\ud800" <= c <= "\udfff" for c in v),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: TYPES["integer"](v) or (isinstance(v, float) and math.isfinite(v)),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "null": lambda v: v is None,
}
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {  # of which type, and in words
    "minimum": ("number", operator.ge, "at least {}"),
    "maximum": ("number", operator.le, "at most {}"),
    "exclusiveMinimum": ("number", operator.gt, "above {}"),
    "exclusiveMaximum": ("number", operator.lt, "below {}"),
    "minItems": ("array", lambda v, n: len(v) >= n, "a list of {} or more"),
    "maxItems": ("array", lambda v, n: len(v) <= n, "a list of {} or fewer"),
    "minLength": ("string", lambda v, n: len(v) >= n, "a text of {} or more characters"),
    "maxLength": ("string", lambda v, n: len(v) <= n, "a text of {} or fewer characters"),
}
KINDS = {"enum": list(TYPES)}
COUNT = {"type": "integer", "minimum": 0}
# the schema of each key of a schema; that of a list's `items` is a schema itself
KEYS: dict[str, dict[str, Any]] = {
    "type": {"type": ["string", "array"], "minItems": 1, "items": KINDS},
    "description": {"type": "string"},
    "default": {},
    "enum": {"type": "array", "minItems": 1},
    "format": {"enum": ["path", "template"]},  # files of the user's; a text with {}
    "items": {"type": "object"},
    "uniqueItems": {"type": "boolean"},
    **{key: {"type": "number"} if of == "number" else COUNT for key, (of, *_) in BOUNDS.items()},
}


def check_schemas(schemas: Any, where: str, required: Sequence[str] = ()) -> None:
    """Check JSON Schemas of options, which have the `required` keys, and their defaults."""
    for name, option in schemas.items():
        _check_schema(option, f"{where}.{name}")
        for key in ("type", "description", *required):
            if key not in option:
                raise FedLoomError(f"{where}.{name}.{key}: is missing")
        if "default" in option:
            check_value(option["default"], option, f"{where}.{name}.default")


def _check_schema(schema: Any, where: str) -> None:
    check_value(schema, {"type": "object"}, where)
    fill_in(schema, KEYS, where)
    if isinstance(schema.get("type"), str):
        check_value(schema["type"], KINDS, f"{where}.type")
    if "items" in schema:
        _check_schema(schema["items"], f"{where}.items")


def fill_in(options: dict[str, Any], schemas: dict[str, dict], where: str) -> dict[str, Any]:
    """Check options, and return them with the defaults of those that are left out."""
    for name, value in options.items():
        if name not in schemas:
            raise FedLoomError(f"{where}.{name}: unknown key; {suggestion(name, schemas)}")
        check_value(value, schemas[name], f"{where}.{name}")
    return {name: option.get("default") for name, option in schemas.items()} | options


def check_value(value: Any, schema: dict[str, Any], where: str) -> None:
    """Check a value by a JSON Schema; errors begin with `where`."""
    rule = _broken_rule(value, schema)
    if rule is not None:
        raise FedLoomError(shortened(f"{where}: must be {rule}, got {value!r}"))
    for number, item in enumerate(value if isinstance(value, list) else ()):
        check_value(item, schema.get("items", {}), f"{where}[{number}]")


def _broken_rule(value: Any, schema: dict[str, Any]) -> str | None:
    """Return the first broken rule of a schema, without those of a list's items."""
    kinds = schema.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(TYPES[kind](value) for kind in kinds):
        return " or ".join(kinds)
    if value not in schema.get("enum", [value]):
        return f"one of {', '.join(repr(choice) for choice in schema['enum'])}"
    for key, (kind, holds, words) in BOUNDS.items():
        if key in schema and TYPES[kind](value) and not holds(value, schema[key]):
            return words.format(schema[key])
    if schema.get("uniqueItems") and any(item in value[:n] for n, item in enumerate(value)):
        return "a list of different entries"
    if schema.get("format") == "template" and isinstance(value, str) and "{}" not in value:
        return "a text with {}"
    return None
