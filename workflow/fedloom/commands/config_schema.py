"""The JSON Schema of the config, made from the models of its keys: for editors and for the docs."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from fedloom.commands.planning import KINDS
from fedloom.common.schema import Keys
from fedloom.config.kinds import LIBRARIES, NAMED_BY
from fedloom.config.study import Config, PartitionGrid, Protocol

ROOMS = {**KINDS, "backbones": LIBRARIES}
RECIPE = {
    "description": "a published data set; keys of its source may follow",
    "type": "object",
    "required": ["recipe"],
    "properties": {"recipe": {"type": "string"}},
}
INCLUDE = {
    "description": "files, by paths relative to this one, over which it is merged",
    "type": "array",
    "items": {"type": "string"},
}


def whole(sub: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a key without a null default; its reference is looked up.

    Keys beside a reference override those that it leads to.
    """
    if "$ref" in sub:
        target = root["$defs"][sub["$ref"].rsplit("/", 1)[1]]
        sub = target | {key: value for key, value in sub.items() if key != "$ref"}
    options = [option for option in sub.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        sub = whole(options[0], root) | {k: v for k, v in sub.items() if k != "anyOf"}
    if sub.get("default", ...) is None:
        sub = {key: value for key, value in sub.items() if key != "default"}
    return sub | {"anyOf": options} if len(options) > 1 else sub


class _Described(GenerateJsonSchema):
    """Describe every key by the docstring below it, which pydantic reads from no file by itself."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        """Return the schema of a model, with its keys' descriptions."""
        made, model = super().model_schema(schema), schema["cls"]
        for parent in reversed(model.__mro__):
            if parent is vars(sys.modules[parent.__module__]).get(parent.__name__):
                for name, text in _texts(parent).items():
                    key = model.model_fields[name].alias or name
                    made["properties"][key]["description"] = text
        return made


@cache
def _texts(model: type) -> dict[str, str]:
    """Return the docstring below every key of a class, without those that it inherits."""
    if not issubclass(model, Keys):
        return {}
    (tree,) = ast.parse(dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(key.target): " ".join(ast.literal_eval(below.value).split())
        for key, below in pairwise(tree.body)
        if isinstance(key, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def schema_of(model: type[Keys]) -> dict[str, Any]:
    """Return the JSON Schema of a model, with the descriptions of its keys."""
    return model.model_json_schema(schema_generator=_Described)


def kind_schema(section: str, name: str) -> dict[str, Any]:
    """Return the schema of an entry of a kind: its own keys first, then those that all have."""
    model = ROOMS[section][name]
    schema = schema_of(model)
    own = [key for key in schema["properties"] if key in model.__annotations__]
    named = {NAMED_BY[section]: {"const": name}}
    ordered = {key: schema["properties"][key] for key in own} | schema["properties"]
    if section == "partitions":
        protocol = schema_of(Protocol)
        schema["$defs"] = schema.get("$defs", {}) | protocol.pop("$defs")
        ordered["protocol"] = protocol
        ordered |= schema_of(PartitionGrid)["properties"]
    schema["properties"] = named | ordered
    schema["required"] = [*named, *schema.get("required", [])]
    return schema


def config_schema() -> dict[str, Any]:
    """Return the schema of a file of the config, which need not hold all sections."""
    root = schema_of(Config)
    for section, room in ROOMS.items():
        kinds = [kind_schema(section, name) for name in room]
        for kind in kinds:
            root["$defs"] |= kind.pop("$defs", {})
        (entries,) = root["properties"][section]["patternProperties"].values()  # by label
        entries["anyOf"] = [*kinds, *([RECIPE] if section == "datasets" else [])]
    for part in (root, root["$defs"]["Study"], root["$defs"]["Select"]):
        part.pop("required", None)  # another file may have it
    root["properties"]["include"] = INCLUDE
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root
