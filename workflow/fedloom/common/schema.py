"""JSON Schema as FedLoom uses it: one-line errors that name the key, and defaults filled in."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker, exceptions, validators

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, suggestion

SCHEMAS = ROOT / "workflow/schemas"


class SchemaError(FedLoomError):
    """A value that a schema refuses.

    Attributes:
        keys: path to it from the root of the document.
    """

    def __init__(self, line: str, keys: Sequence[str | int]):
        super().__init__(line)
        self.keys = list(keys)


def read_yaml(path: Path) -> Any:
    """Read a YAML file that ships with FedLoom, by libyaml's fast parser."""
    return yaml.load(path.read_text(), yaml.CSafeLoader)


@cache
def load(name: str) -> dict[str, Any]:
    """Return the schema `workflow/schemas/<name>.schema.yaml`, read once."""
    return read_yaml(SCHEMAS / f"{name}.schema.yaml")


def _is_integer(_: object, value: object) -> bool:
    """Refuse 1.0 as an integer: it would become a path, and a tensor size."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    """Refuse infinity and NaN, which no digest and no optimiser can take."""
    return _is_integer(_, value) or (isinstance(value, float) and math.isfinite(value))


def _is_string(_: object, value: object) -> bool:
    """Refuse half a character (a lone surrogate), which no file can hold."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number, "string": _is_string}
    ),
)
FORMATS = FormatChecker(())
FORMATS.checks("template")(lambda value: not isinstance(value, str) or "{}" in value)


def check(
    value: Any,
    schema: dict[str, Any],
    where: str,
    root: dict[str, Any] | None = None,
    keys: Sequence[str | int] = (),
) -> None:
    """Validate `value`.

    Args:
        where: what to put before the key, e.g. "config key partitions.path" or "file: ".
        root: the schema whose $defs the schema refers to, if not itself.
        keys: path to `value` in its document.

    Raises:
        SchemaError: one line with the first error nearest to the root.
    """
    schema = {"$defs": root["$defs"], **schema} if root else schema
    errors = list(Validator(schema, format_checker=FORMATS).iter_errors(value))
    error = exceptions.best_match(errors)
    if error is None:
        return
    while error.parent is not None and "description" in error.parent.schema:
        error = error.parent  # of several alternatives: say what they mean, not how one fails
    path = list(error.absolute_path)
    message = " ".join(error.message.split())
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        path.append(next(key for key in error.instance if key not in known))
        message = f"unknown key; {suggestion(str(path[-1]), known)}"
    elif error.validator == "not" and "description" in error.schema:
        message = error.schema["description"]
    elif error.validator == "format":
        message = f"{error.instance!r} must hold {{}}"
    elif error.validator_value == "string" and isinstance(error.instance, str):
        message = f"{error.instance!r} holds half a character (a lone surrogate)"
    elif error.validator == "oneOf":
        message = f"{error.instance!r}, expected: {error.schema['description']}"
    if len(message) > 300:
        message = f"{message[:297]}..."
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    if where.endswith(" "):
        steps = steps.lstrip(".")
    line = f"{where}{steps}: {message}" if steps else f"{where.rstrip(': ')}: {message}"
    raise SchemaError(line, [*keys, *path])


def filled(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return `value` with the defaults of the schema's missing keys, nested objects included."""
    properties = schema.get("properties", {})
    result = {key: sub["default"] for key, sub in properties.items() if "default" in sub} | value
    for key, sub in properties.items():
        if "$ref" in sub:
            sub = root["$defs"][sub["$ref"].rsplit("/", 1)[1]]
        if isinstance(result.get(key), dict):
            result[key] = filled(result[key], sub, root)
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        for key in result.keys() - properties.keys():
            if isinstance(result[key], dict):
                result[key] = filled(result[key], extra, root)
    return result
