"""Make the JSON Schema of the config from the models of its keys, for editors and for the docs."""

from fedloom.common.json_types import JsonDict
from fedloom.config.kinds import KINDS, SELECTOR_KEY
from fedloom.config.study import Config, PartitionGrid, Protocol

# the schema of a dataset that names a recipe; it may also have keys of the recipe's source
RECIPE = {"type": "object", "required": ["recipe"]}
# the schema of the key `include`; no model has it, since it is read before the models are used
INCLUDE = {
    "description": "Config files, by paths relative to this file, whose keys this file overrides.",
    "type": "array",
    "items": {"type": "string"},
}
# the same for the key `inherit`
INHERIT = {
    "description": "Whether this file inherits the keys of FedLoom's own config.yaml and of the "
    "current folder's. With false, it is a whole config.",
    "type": "boolean",
    "default": True,
}


def whole(sub: JsonDict, root: JsonDict) -> JsonDict:
    """Return the schema of a key, with its reference replaced, and without null.

    A reference is replaced by the schema that it leads to. Keys beside the reference override those
    of that schema. Null is left out as an alternative and as a default.
    """
    if "$ref" in sub:
        target = root["$defs"][sub["$ref"].rsplit("/", 1)[1]]
        sub = target | _without(sub, "$ref")

    # null only says that a key is not set; if one other alternative is left, it is the schema
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
    """Return the schema of an entry of a kind: first the kind's own keys, then all other keys."""
    model = KINDS[section][name]
    schema = model.model_json_schema()
    properties = schema["properties"]

    # order the keys: the one that names the kind, the kind's own keys, and all others
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
    """Return the schema of a config file; no section is required, as other files may have it."""
    root = Config.model_json_schema()
    for section, room in KINDS.items():
        # move the definitions that a kind refers to into the whole schema
        kinds = [kind_schema(section, name) for name in room]
        for kind_model in kinds:
            root["$defs"] |= kind_model.pop("$defs", {})

        # an entry of the section, under any label, must be of one of these kinds
        (entries,) = root["properties"][section]["patternProperties"].values()
        entries["anyOf"] = kinds
        if section == "datasets":
            entries["anyOf"] = [*kinds, RECIPE]

    # no key is required, since another file may have it
    for part in (root, root["$defs"]["Study"], root["$defs"]["Select"]):
        part.pop("required", None)
    root["properties"] |= {"include": INCLUDE, "inherit": INHERIT}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root
