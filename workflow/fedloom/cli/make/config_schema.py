"""The JSON Schema of the config, made from the models of its keys: for editors and for the docs."""

from fedloom.common.json_types import JsonDict
from fedloom.config.kinds import KINDS, SELECTOR_KEY
from fedloom.config.study import Config, PartitionGrid, Protocol

# a dataset by its recipe; keys of the recipe's source may follow
RECIPE = {"type": "object", "required": ["recipe"]}
# the key `include`, which no model has as it is read before all others
INCLUDE = {
    "description": "Config files whose keys this file overrides, relative to it.",
    "type": "array",
    "items": {"type": "string"},
}


def whole(sub: JsonDict, root: JsonDict) -> JsonDict:
    """Return the schema of a key without a null default; its reference is looked up.

    Keys beside a reference override those that it leads to.
    """
    if "$ref" in sub:
        target = root["$defs"][sub["$ref"].rsplit("/", 1)[1]]
        sub = target | _without(sub, "$ref")

    # null says that a key is not set: a single alternative beside it is the key's schema
    options = [option for option in sub.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        sub = whole(options[0], root) | _without(sub, "anyOf")
    elif options:
        sub = sub | {"anyOf": options}

    if sub.get("default", ...) is None:
        return _without(sub, "default")
    return sub


def _without(schema: JsonDict, key: str) -> JsonDict:
    """Return a schema without one of its keys."""
    return {name: value for name, value in schema.items() if name != key}


def kind_schema(section: str, name: str) -> JsonDict:
    """Return the schema of an entry of a kind: its own keys first, then those that all have."""
    model = KINDS[section][name]
    schema = model.model_json_schema()
    properties = schema["properties"]

    # the key that names the kind, the kind's own keys, then the others
    named = {SELECTOR_KEY[section]: {"const": name}}
    own = {key: entry for key, entry in properties.items() if key in model.__annotations__}
    ordered = named | own | properties

    # a partition may override the study's protocol, and be a grid
    if section == "partitions":
        protocol = Protocol.model_json_schema()
        schema["$defs"] = schema.get("$defs", {}) | protocol.pop("$defs")
        ordered["protocol"] = protocol
        ordered.update(PartitionGrid.model_json_schema()["properties"])

    schema["properties"] = ordered
    schema["required"] = [*named, *schema.get("required", [])]
    return schema


def config_schema() -> JsonDict:
    """Return the schema of a file of the config, which need not hold all sections."""
    root = Config.model_json_schema()
    for section, room in KINDS.items():
        # references of a kind lead to definitions of the whole schema
        kinds = [kind_schema(section, name) for name in room]
        for kind in kinds:
            root["$defs"] |= kind.pop("$defs", {})

        # an entry, whatever its label, is of one of these kinds
        (entries,) = root["properties"][section]["patternProperties"].values()
        entries["anyOf"] = kinds
        if section == "datasets":
            entries["anyOf"] = [*kinds, RECIPE]

    # a required key may be in another file
    for part in (root, root["$defs"]["Study"], root["$defs"]["Select"]):
        part.pop("required", None)
    root["properties"]["include"] = INCLUDE
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root
