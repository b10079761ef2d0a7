"""Check YAML and TOML that people wrote against models; an error is one line that names the key."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from fedloom.common.errors import one_line, shorten, suggestion
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import KeyPath

# the most characters of a value that an error quotes
MAX_VALUE_CHARACTERS = 100
Item = TypeVar("Item")
Model = TypeVar("Model", bound="Keys")


class Keys(BaseModel):
    """A mapping with these keys and no others; no value is converted to another type."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        use_attribute_docstrings=True,
    )

    @property
    def plain(self) -> JsonDict:
        """The keys and their values, without the keys whose value is null."""
        return self.model_dump(by_alias=True, exclude_none=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: object) -> object:
        """Refuse a mapping with an unknown key; pydantic itself refuses any other value."""
        if not isinstance(value, dict):
            return value

        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in value:
            if key not in known:
                about = {"key": key, "hint": suggestion(str(key), known)}
                raise PydanticCustomError("unknown", "unknown key; {hint}", about)
        return value


def is_number(value: object) -> bool:
    """Return True if a value is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _distinct(items: list) -> list:
    """Return a list, or raise a ValueError if it holds an item twice."""
    for number, item in enumerate(items):
        if item in items[:number]:
            raise ValueError(f"must hold each item once, got {item!r} twice")
    return items


# the value of a key that is not given, and that overrides another key if it is given
UNSET: Any = None
UNIQUE = Field(json_schema_extra={"uniqueItems": True})
Distinct = Annotated[list[Item], AfterValidator(_distinct), UNIQUE]
Several = Annotated[Distinct[Item], Field(min_length=1)]
OneOrMore = Item | Annotated[list[Item], Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
# seeds are below 2^31, since a column of a table holds a seed in 32 bits
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Number = float
Percent = Annotated[float, Field(gt=0, le=100)]
# a part of a whole: more than nothing, and less than the whole
OpenShare = Annotated[float, Field(gt=0, lt=1)]
# a part of a whole: nothing is one, and the whole is none
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
# a part of a whole: nothing is none, and the whole is one
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Identifier = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
# As in JSON Schema, no end of line may follow `$` here; with Python's `re` it could.
Label = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def require_other_keys(model: Model, **other_keys: str) -> Model:
    """Return the model; raise a ValueError if it sets a key without another key that this needs.

    In `require_other_keys(model, std="mean")`, the key `std` needs the key `mean`.
    """
    for key, other in other_keys.items():
        if getattr(model, key) is not None and getattr(model, other) is None:
            raise ValueError(f"{key} needs {other}; set it too, or leave {key} out")
    return model


def validate(model: type[Model], value: object, where: KeyPath) -> Model:
    """Check a value against a model, and return the model.

    `where` is the value's key path. If keys are wrong, raise an InvalidKeyError about the key that
    is the least deeply nested.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        steps, message = _nearest(error.errors(include_url=False), value)

    for step in steps:
        where = where / step
    raise where.error(one_line(message))


def _nearest(errors: list[ErrorDetails], value: object) -> tuple[list[str | int], str]:
    """Return the path and the message of the error that is the least deeply nested.

    If a key allows several types, the message lists them. But if the value has one of these types,
    and only its inside is wrong, the message is about the inside.
    """
    # the shortest path, and all errors there: one for each type that the key allows
    placed = [(_path(error, value), error) for error in errors]
    path = min((path for path, _ in placed), key=len)
    here = [error for each, error in placed if each == path]

    # if the value has one of these types and is wrong inside, take the error inside
    inside = [each for each, _ in placed if each[: len(path)] == path and len(each) > len(path)]
    is_alternative = len(here[0]["loc"]) > len(path)
    if inside and is_alternative and here[0]["type"] != "missing":
        path = min(inside, key=len)
        here = [error for each, error in placed if each == path]

    # what the allowed types ask for, and the given value unless the text already shows it
    first, *others = dict.fromkeys(_sentence(error) for error in here)
    alternatives = [other.removeprefix("must be ") for other in others]
    text = " or ".join([first, *alternatives])
    if here[0]["type"] in ("missing", "unknown", "value_error"):
        return path, text
    return path, f"{text}, got {shorten(repr(here[0]['input']), MAX_VALUE_CHARACTERS)}"


# the message for each of pydantic's types of error; the fields in braces are of the error's context
SENTENCES = {
    "missing": "missing; it has no default, so set it",
    "bool_type": "must be a boolean",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "none_required": "must be null",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match pattern '{pattern}'",
    "too_short": "must have at least {min_length} {items}, not {actual_length}",
    "too_long": "must have at most {max_length} {items}, not {actual_length}",
    "value_error": "{error}",
}


def _sentence(error: ErrorDetails) -> str:
    """Return the message of an error: that in SENTENCES, or else pydantic's own."""
    if error["type"] not in SENTENCES:
        return error["msg"]

    # the bound of a list's length is followed by "item" or "items"
    context = dict(error.get("ctx", {}))
    context["items"] = "items"
    if context.get("min_length", context.get("max_length")) == 1:
        context["items"] = "item"
    return SENTENCES[error["type"]].format(**context)


def _path(error: ErrorDetails, value: object) -> list[str | int]:
    """Return the keys and positions that lead to an error inside a value."""
    # take the steps of pydantic's path that lead into the value; its other steps name types
    path: list[str | int] = []
    for step in error["loc"]:
        in_list = isinstance(value, list) and isinstance(step, int)
        if in_list or (isinstance(value, dict) and step in value):
            path.append(step)
            inner: Any = value
            value = inner[step]

    # the last step is a key that is missing from the value, or unknown
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    if error["type"] == "unknown":
        path.append(error["ctx"]["key"])  # type: ignore[typeddict-item]
    return path


@cache
def read_yaml(path: Path) -> Any:
    """Read a YAML file that ships with FedLoom, with the fast parser of libyaml."""
    return yaml.load(path.read_text(), yaml.CSafeLoader)
