"""The reference of config.yaml, from its JSON Schema, and of method.toml, from its model."""

import ast
import inspect
import json
import re
from itertools import pairwise

from fedloom.common import schema
from fedloom.config.data_plugins import entries
from fedloom.hooks import manifest

SECTIONS = {  # of config.yaml, whose entries are of a kind: the key that names it
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def cell(text: str) -> str:
    """Escape what would end a cell of a Markdown table or begin a tag."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def plain(item: object) -> str:
    """Return a value as it would stand in YAML."""
    return item if isinstance(item, str) and item else json.dumps(item, ensure_ascii=False)


def value(item: object) -> str:
    """Return a value as code."""
    return f"`{plain(item)}`"


def resolved(sub: dict, root: dict) -> dict:
    """Return a subschema with its reference looked up; what stands beside the reference wins."""
    if "$ref" not in sub:
        return sub
    beside = {key: item for key, item in sub.items() if key != "$ref"}
    return root["$defs"][sub["$ref"].rsplit("/", 1)[1]] | beside


def type_of(sub: dict, root: dict) -> str:
    """Return type and bounds of a value in words."""
    sub = resolved(sub, root)
    if "const" in sub:
        return value(sub["const"])
    if "enum" in sub:
        return ", ".join(value(item) for item in sub["enum"])
    if "oneOf" in sub:
        return " or ".join(type_of(option, root) for option in sub["oneOf"])
    kind = sub.get("type", "anything")
    if kind == "array":
        return list_of(sub, root)
    words = " or ".join(kind) if isinstance(kind, list) else kind
    words = {"object": "mapping", "string": "text"}.get(words, words)
    bounds = [f"{sign} {plain(sub[key])}" for key, sign in BOUNDS.items() if key in sub]
    return cell(f"{words} {', '.join(bounds)}")


def list_of(sub: dict, root: dict) -> str:
    """Return in words what a list holds, and how many."""
    least, most = sub.get("minItems"), sub.get("maxItems")
    items = type_of(sub.get("items", {}), root)
    if least is None and most is None:
        return f"list: {items}"
    if least == most:
        return f"list of {least}: {items}"
    if most is None:
        return f"list of {least} or more: {items}"
    return f"list of {least or 0} to {most}: {items}"


def about(sub: dict) -> str:
    """Return the description of a key, as a cell of a table."""
    return cell(sub.get("description", ""))


def sentence(sub: dict) -> str:
    """Return the description of an entry as a sentence."""
    text = about(sub)
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""


def rows(properties: dict, required: list, root: dict, prefix: str = "") -> list[str]:
    """Return a table row per key; keys of a nested mapping follow their parent."""
    lines = []
    for key, sub in properties.items():
        if sub is False:
            continue  # a key that this kind of plugin must not have
        whole = resolved(sub, root)
        default = value(whole["default"]) if "default" in whole else ""
        words = [type_of(whole, root), "required" if key in required else default, about(whole)]
        lines.append(f"| `{prefix}{key}` | {' | '.join(words)} |")
        if sub.get("$ref") == "#/$defs/training":
            continue  # a chapter of its own
        for option in whole.get("oneOf", [whole]):
            inner = option.get("properties", {})
            lines += rows(inner, option.get("required", []), root, f"{prefix}{key}.")
    return lines


def table(sub: dict, root: dict, prefix: str = "") -> str:
    """Return the keys of a mapping as a Markdown table."""
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join(head + rows(sub.get("properties", {}), sub.get("required", []), root, prefix))


def kinds(section: str, root: dict) -> str:
    """Return a chapter on a section of config.yaml: each of its kinds with its keys."""
    key = SECTIONS[section]
    parts = [f"## {section}\n\nA label each; `{key}` says which kind of entry it is."]
    if section == "datasets":
        parts[0] += (
            " An entry may have a `recipe` instead, the name of one [that ships](recipes.md) or the"
            " path of a .yaml file, and any keys of the recipe's source beside it."
        )
    for name, sub in entries(section).items():
        parts.append(f"### {key}: {name}\n\n{sentence(sub)}\n\n{table(sub, root)}")
    return "\n\n".join(parts)


def config_page() -> str:
    """Return the reference of config.yaml, a chapter per section."""
    root = schema.load("config")
    chapters = [
        "# config.yaml",
        "Every key of `config.yaml` and of a study, from `workflow/schemas/config.schema.yaml`. "
        "A key that is not listed here is an error that names it.",
    ]
    for name, sub in root["properties"].items():
        if name in SECTIONS:
            chapters.append(kinds(name, root))
            continue
        shape = sub.get("additionalProperties")
        labelled = isinstance(shape, dict)
        keys = table(shape, root, "<label>.") if labelled else table(sub, root)
        text = f"## {name}\n\n{sentence(sub)}"
        chapters.append(f"{text}\n\n{keys}" if labelled or "properties" in sub else text)
    chapters.append(
        "## training\n\nThe keys of `study.training`, of a method's `training`, and of `[training]`"
        " in method.toml. A method's values override the study's, which override method.toml's.\n\n"
        + table(root["$defs"]["training"], root)
    )
    return "\n\n".join(chapters)


def method_page() -> str:
    """Return the reference of method.toml, from the types and docstrings of the manifest."""
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return (
        "# method.toml\n\nWhat a plugin says of itself, from `workflow/fedloom/hooks/manifest.py`;"
        " the keys of `[training]` are those of [config.yaml](config.md#training). A condition is"
        " `true`, or the values of options with which something holds.\n\n"
        + "\n".join(head + fields(manifest.Plugin))
    )


def fields(model: type, prefix: str = "") -> list[str]:
    """Return a table row per key of a model, with what stands below it in its source."""
    body = ast.parse(inspect.getsource(model)).body[0].body
    meanings = {
        field.target.id: ast.literal_eval(text.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    lines = []
    for field in (entry for entry in body if isinstance(entry, ast.AnnAssign)):
        name, default = field.target.id, ast.unparse(field.value) if field.value else ""
        alias = re.search(r"alias='(\w+)'", default)
        key = alias[1] if alias else name
        if default and default != "None" and not default.startswith("Field"):
            default = value(json.loads(json.dumps(ast.literal_eval(default))))
        else:
            default = ""
        words = type_in_words(ast.unparse(field.annotation))
        lines.append(f"| `{prefix}{key}` | {words} | {default} | {cell(meanings.get(name, ''))} |")
        section = {"paper": manifest.Paper, "cost": manifest.Cost, "look": manifest.Look}.get(key)
        lines += fields(section, f"{key}.") if section else []
    return lines


TYPES = {"str": "text", "bool": "true or false", "int": "integer", "Condition": "condition"}


def type_in_words(annotation: str) -> str:
    """Return the type of a key of method.toml in words, from its annotation."""
    text = re.sub(r"NotRequired\[(.*)\]|Annotated\[(\w+),.*\]", r"\1\2", annotation)
    text = re.sub(r"Several\[(.*)\]", r"list: \1", text)
    text = re.sub(r"Literal\[(.*?)\]", lambda m: re.sub(r"'([^']*)'", r"`\1`", m[1]), text)
    parts = [part for part in text.split(" | ") if part != "None"]
    is_mapping = re.compile(r"dict|[A-Z]\w+$")
    words = [TYPES.get(part) or (is_mapping.match(part) and "mapping") or part for part in parts]
    return " or ".join(words)
