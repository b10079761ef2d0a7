"""The JSON Schema of the config, made from the models of its keys: for editors and for the docs."""

from typing import Any

from fedloom.config.kinds import KINDS, NAMED_BY
from fedloom.config.study import Config, PartitionGrid, Protocol

RECIPE = {"type": "object", "required": ["recipe"]}  # keys of its source may follow
INCLUDE = {"description": "files below this one", "type": "array", "items": {"type": "string"}}


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


def kind_schema(section: str, name: str) -> dict[str, Any]:
    """Return the schema of an entry of a kind: its own keys first, then those that all have."""
    model = KINDS[section][name]
    schema = model.model_json_schema()
    own = [key for key in schema["properties"] if key in model.__annotations__]
    named = {NAMED_BY[section]: {"const": name}}
    ordered = {key: schema["properties"][key] for key in own} | schema["properties"]
    if section == "partitions":
        protocol = Protocol.model_json_schema()
        schema["$defs"] = schema.get("$defs", {}) | protocol.pop("$defs")
        ordered["protocol"] = protocol
        ordered |= PartitionGrid.model_json_schema()["properties"]
    schema["properties"] = named | ordered
    schema["required"] = [*named, *schema.get("required", [])]
    return schema


def config_schema() -> dict[str, Any]:
    """Return the schema of a file of the config, which need not hold all sections."""
    root = Config.model_json_schema()
    for section, room in KINDS.items():
        kinds = [kind_schema(section, name) for name in room]
        for kind in kinds:
            root["$defs"] |= kind.pop("$defs", {})
        (entries,) = root["properties"][section]["patternProperties"].values()  # by label
        entries["anyOf"] = [*kinds, *([RECIPE] if section == "datasets" else [])]
    for part in (root, root["$defs"]["Study"], root["$defs"]["Select"]):
        part.pop("required", None)  # another file may have it
    root["properties"]["include"] = INCLUDE
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root
