"""The reference of config.yaml and of method.toml, from the models of their keys."""

import json

from fedloom.config.config_schema import kind_schema, whole
from fedloom.config.kinds import KINDS, SELECTOR_KEY
from fedloom.config.study import Config
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.training_options import Training

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def cell(text: str) -> str:
    """Escape what would end a cell of a Markdown table or begin a tag."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def plain(item: object) -> str:
    """Return a value as YAML writes it."""
    return item if isinstance(item, str) and item else json.dumps(item, ensure_ascii=False)


def value(item: object) -> str:
    """Return a value as code."""
    return f"`{plain(item)}`"


def type_of(sub: dict, root: dict) -> str:
    """Return type and bounds of a value in words."""
    sub = whole(sub, root)
    if "const" in sub:
        return value(sub["const"])
    if "enum" in sub:
        return ", ".join(value(item) for item in sub["enum"])
    if "anyOf" in sub:
        return " or ".join(type_of(option, root) for option in sub["anyOf"])
    kind = sub.get("type", "anything")
    if kind == "array":
        return list_of(sub, root)
    words = " or ".join(kind) if isinstance(kind, list) else kind
    words = {"object": "mapping", "string": "text"}.get(words, words)
    bounds = [f"{sign} {plain(sub[key])}" for key, sign in BOUNDS.items() if key in sub]
    return cell(f"{words} {', '.join(bounds)}")


def list_of(sub: dict, root: dict) -> str:
    """Return in words what a list holds, and how many."""
    least = sub.get("minItems")
    most = sub.get("maxItems")
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
        meant = whole(sub, root)
        has_text = not isinstance(meant.get("default", {}), dict)
        default = value(meant["default"]) if has_text else ""
        words = [type_of(meant, root), "required" if key in required else default, about(meant)]
        lines.append(f"| `{prefix}{key}` | {' | '.join(words)} |")
        if key == "training":
            continue  # a separate chapter
        for option in map(lambda each: whole(each, root), meant.get("anyOf", [meant])):
            inner = option.get("properties", {})
            lines += rows(inner, option.get("required", []), root, f"{prefix}{key}.")
    return lines


def table(sub: dict, root: dict, prefix: str = "") -> str:
    """Return the keys of a mapping as a Markdown table."""
    head = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join(head + rows(sub.get("properties", {}), sub.get("required", []), root, prefix))


def kinds(section: str) -> str:
    """Return a chapter on a section of config.yaml: each of its kinds with its keys."""
    key = SELECTOR_KEY[section]
    parts = [f"## {section}\n\nA label each; `{key}` says which kind of entry it is."]
    if section == "datasets":
        parts[0] += (
            " An entry may have a `recipe` instead, the name of one [that ships](recipes.md) or the"
            " path of a .yaml file, and any keys of the recipe's source beside it."
        )
    for name in KINDS[section]:
        sub = kind_schema(section, name)
        parts.append(f"### {key}: {name}\n\n{sentence(sub)}\n\n{table(sub, sub)}")
    return "\n\n".join(parts)


def config_page() -> str:
    """Return the reference of config.yaml, a chapter per section."""
    root = Config.model_json_schema()
    chapters = [
        "# config.yaml",
        "Every key of `config.yaml` and of a study. A key that is not listed here is an error that "
        "names it. `fedloom schema` prints the same as JSON Schema, by which an editor completes "
        "and checks keys.",
    ]
    for name, sub in root["properties"].items():
        if name in KINDS:
            chapters.append(kinds(name))
            continue
        meant = whole(sub, root)
        (shape,) = meant.get("patternProperties", {"": None}).values()
        keys = table(meant, root) if shape is None else table(whole(shape, root), root, "<label>.")
        chapters.append(f"## {name}\n\n{sentence(meant)}\n\n{keys}")
    training = Training.model_json_schema()
    chapters.append(f"## training\n\n{sentence(training)}\n\n{table(training, training)}")
    return "\n\n".join(chapters)


def method_page() -> str:
    """Return the reference of method.toml, from the model of its keys."""
    root = MethodManifest.model_json_schema()
    return (
        "# method.toml\n\nWhat a plugin says of itself, from `workflow/fedloom/hooks/manifest.py`;"
        " the keys of `[training]` are those of [config.yaml](config.md#training). A condition is"
        " `true`, or the values of options with which something holds.\n\n" + table(root, root)
    )
