"""A page per plugin, from its method.toml and the docstring of its plugin.py."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from schema_pages import cell, plain, type_of, value
from source_pages import source_link

from fedloom.cli.inspect.describe import first_line
from fedloom.common.folders import read_python
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.manifest_sections import Paper


def as_markdown(text: str) -> str:
    """Return a docstring with what Markdown would take for emphasis or a tag escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else part.replace("_", "\\_").replace("<", "&lt;")
        for part in parts
    )


def link(paper: Paper) -> str:
    """Return the citation, linked if method.toml gives a DOI, an arXiv number or an address."""
    if not paper.address:
        return cell(paper.citation)
    return f"[{cell(paper.citation)}]({paper.address})"


def facts(plugin: MethodManifest) -> str:
    """Return the facts of a plugin as a table."""
    kinds = {
        "vit": "method for vision transformers",
        "clip": "method for CLIP",
        None: "wrapper: changes what a method's hooks return",
    }
    kind = kinds[plugin.family]
    entries = [("plugin", f"`{plugin.name}`, {kind}"), ("paper", link(plugin.paper))]
    if plugin.paper.equations:
        entries.append(("equations", cell(plugin.paper.equations)))
    if plugin.needs:
        entries.append(("reads", ", ".join(f"`{name}`" for name in plugin.needs)))
    if not plugin.trained:
        entries.append(("training", "none"))
    if plugin.kind == "method" and not plugin.stacked:
        entries.append(("clients", "one at a time"))
    for name, artefact in plugin.artefacts.items():
        options = settings(artefact.options)
        about = cell(artefact.description) + (f" (with {options})" if options else "")
        entries.append(("artefact", f"`{name}`: {about}"))
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {text} |" for key, text in entries)])


def settings(values: dict) -> str:
    """Return keys and values as in YAML, in one line."""
    return ", ".join(f"`{key}: {plain(item)}`" for key, item in values.items())


def options(plugin: MethodManifest) -> str:
    """Return the options as a table."""
    head = ["| option | value | default | meaning |", "|---|---|---|---|"]
    lines = [
        f"| `{name}` | {type_of(option, {})} | {value(option['default'])} |"
        f" {cell(option['description'])} |"
        for name, option in plugin.option_schemas.items()
    ]
    return "\n".join(head + lines)


def card(plugin: MethodManifest) -> str:
    """Return the sections after the hand-written text: options, training values, choices."""
    parts = []
    if plugin.option_schemas:
        parts.append(f"## Options\n\n{options(plugin)}")
    if training := plugin.training_defaults.given:
        values = settings(training)
        about = f"The paper's values, or ours if it states none: {values}."
        parts.append(f"## Training values\n\n{about}")
    parts.append(f"## Choices\n\n{said_in(plugin.file)}")
    released = plugin.folder / "released.py"
    if released.exists():
        parts.append(f"## The released code\n\n{said_in(released)}")
    return "\n\n".join(parts)


def said_in(file: Path) -> str:
    """Return the docstring of a plugin's module, and a link to the file."""
    text = ast.get_docstring(read_python(file)) or "No docstring."
    return f"From {source_link(file)}:\n\n{as_markdown(text)}"


def index(plugins: Iterable[MethodManifest]) -> str:
    """Return the table of all plugins."""
    head = ["| plugin | title | backbone | what it does |", "|---|---|---|---|"]
    names = {"vit": "ViT", "clip": "CLIP", None: "any"}
    lines = [
        f"| [`{p.name}`]({p.name}.md) | {p.title} | {names[p.family]} | {cell(first_line(p))} |"
        for p in plugins
    ]
    return "\n".join(["## All plugins", "", *head, *lines])
