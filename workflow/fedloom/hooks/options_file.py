"""Write options.py of a method or wrapper: a class of its options, for type checkers and editors.

Options are declared only in the JSON Schemas of method.toml; options.py follows from them. If the
docstring of an existing options.py does not say that `fedloom check` writes it, a person wrote the
file, and it is left alone.
"""

import ast
import json
import keyword
import re
import textwrap
from pathlib import Path

from fedloom.common.files import write_text
from fedloom.common.folders import read_python, read_text
from fedloom.common.json_types import JsonDict
from fedloom.hooks.manifest import MethodManifest

OPTIONS_FILE = "options.py"
MARK = "`fedloom check` writes this file from method.toml."
# the width of a line of text without its indent of four spaces
LINE_WIDTH = 96
PYTHON_TYPES = {
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "string": "str",
    "object": "dict[str, Any]",
    "null": "None",
}


def refresh_options_file(plugin: MethodManifest) -> Path | None:
    """Write options.py of a plugin in the user's own folder; return its path if its text changed.

    A plugin without options has no such file.
    """
    # only a plugin in the user's own folder gets the file
    own_folder = Path("plugins").resolve()
    if plugin.module is not None or not plugin.folder.resolve().is_relative_to(own_folder):
        return None

    # a file stays if a person wrote it, or if it is already up to date
    file = plugin.folder / OPTIONS_FILE
    text = options_text(plugin)
    if file.exists():
        if not _is_generated(file) or read_text(file) == text:
            return None
    elif not plugin.option_schemas:
        return None
    write_text(file, text)
    return file


def _is_generated(file: Path) -> bool:
    """Return True if the docstring of a module says that `fedloom check` writes the module."""
    return MARK in (ast.get_docstring(read_python(file)) or "")


def options_text(plugin: MethodManifest) -> str:
    """Return the text of options.py, formatted as ruff would.

    An option is left out if its name cannot be the name of an attribute (such as `lambda`).
    """
    types = dict[str, str]()
    for name, schema in plugin.option_schemas.items():
        if name.isidentifier() and not keyword.iskeyword(name):
            types[name] = type_annotation(schema)

    # the head of the module
    code = " ".join(types.values())
    names = [name for name in ("Any", "Literal") if re.search(rf"\b{name}\b", code)]
    lines = [f'"""The options of {plugin.name}.', "", MARK, '"""', ""]
    lines.append("from dataclasses import dataclass")
    if names:
        lines.append(f"from typing import {', '.join(names)}")
    lines += ["", ""]

    # the class
    place = "task.options"
    if plugin.kind == "wrapper":
        place = f'task.wrappers["{plugin.name}"]'
    lines += ["@dataclass(frozen=True)", "class Options:", f'    """The class of {place}."""']
    for name, annotation in types.items():
        lines += ["", *_annotated(name, annotation)]
        lines += _docstring(plugin.option_schemas[name]["description"])
    return "\n".join(lines) + "\n"


def type_annotation(schema: JsonDict) -> str:
    """Return the type annotation for the values that fit a JSON Schema."""
    names = list[str]()

    # a list of allowed values, if Literal can hold all of them
    if "enum" in schema and all(isinstance(value, str | int | None) for value in schema["enum"]):
        literals = [_literal(value) for value in schema["enum"] if value is not None]
        if literals:
            names.append(f"Literal[{', '.join(literals)}]")
        if None in schema["enum"]:
            names.append("None")
        return " | ".join(names)

    # one type, or several
    types = schema.get("type", "any")
    if isinstance(types, str):
        types = [types]
    for each in types:
        if each == "array":
            names.append(f"list[{type_annotation(schema.get('items', {}))}]")
        else:
            names.append(PYTHON_TYPES.get(each, "Any"))

    # `| None` comes last
    names.sort(key=lambda name: name == "None")
    return " | ".join(names)


def _literal(value: str | int) -> str:
    """Return a value as Python writes it; a text gets double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _annotated(name: str, annotation: str) -> list[str]:
    """Return the lines that declare a field; a long Literal gets a line for each value."""
    line = f"    {name}: {annotation}"
    before, bracket, inside = line.partition("Literal[")
    values, closing, after = inside.rpartition("]")
    if len(line) <= LINE_WIDTH + 4 or not bracket or "[" in before:
        return [line]
    each = [f"        {value}," for value in re.findall(r'"(?:[^"\\]|\\.)*"|[^", ]+', values)]
    return [f"{before}{bracket}", *each, f"    {closing}{after}"]


def _docstring(description: str) -> list[str]:
    """Return the lines of a field's docstring: the description as a sentence."""
    text = description.strip()

    # begin with a capital, if the first word is a normal word and not a symbol or a value
    first_word = text.partition(" ")[0]
    if len(first_word) > 1 and first_word.isalpha():
        text = text[0].upper() + text[1:]
    if not text.endswith((".", "!", "?")):
        text += "."

    # escape what must not stand between triple quotes
    text = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    lines = textwrap.wrap(
        f'"""{text}"""', LINE_WIDTH, break_long_words=False, break_on_hyphens=False
    )
    return [f"    {line}" for line in lines]
