"""Methods, kinds and studies as text for the terminal."""

import ast
import re
from collections import Counter
from itertools import chain, takewhile
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from tabulate import tabulate

from fedloom.commands import bundled_studies
from fedloom.commands.config_schema import kind_schema, whole
from fedloom.commands.planning import KINDS, read_plan
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.extras import MissingExtraError
from fedloom.common.folders import read_python
from fedloom.config import recipes
from fedloom.config.kinds import NAMED_BY
from fedloom.hooks.manifest import Plugin, discover, find
from fedloom.study.cost import RATES, study_cost
from fedloom.study.make_jobs import transferred_to

WIDTH = 96


def docstring(file: Path) -> str:
    """Return the docstring of a module, read without importing it."""
    text = ast.get_docstring(read_python(file))
    if not text:
        raise FedLoomError(f"{file}: the module has no docstring")
    return text


def summary(plugin: Plugin) -> str:
    """Return the first line of a plugin's docstring, without the name before it."""
    line = docstring(plugin.file).splitlines()[0]
    text = line.partition(": ")[2] or line
    return text[0].upper() + text[1:]


def header(study: Path) -> str:
    """Return the comment at the head of a study, which says what it shows and what it needs."""
    comment = takewhile(lambda line: line.startswith("#"), study.read_text().splitlines())
    lines = [line.lstrip("# ") for line in comment]
    if not lines:
        raise FedLoomError(f"{study}: a study begins with a comment that says what it shows")
    return " ".join(lines)


def methods() -> str:
    """Return a line per plugin: name, title, backbone and what it does."""
    plugins = discover()
    rows = [[p.name, p.title, p.family or "any", summary(p)] for p in plugins.values()]
    table = tabulate(rows, ["name", "title", "backbone", "what it does"])
    return "\n".join([table, *(f"broken: {error}" for error in plugins.broken.values())])


def method(name: str) -> str:
    """Return the facts of a plugin's method.toml."""
    plugin = find(name)
    facts = {
        "title": plugin.title,
        "kind": plugin.kind,
        "backbone": plugin.family,
        "needs": ", ".join(plugin.needs),
        "paper": plugin.paper.citation,
        "link": plugin.paper.link,
        "equations": plugin.paper.equations,
        "file": plugin.file,
    }
    lines = [plugin.name, *(f"  {key:<10}{value}" for key, value in facts.items() if value)]
    if training := plugin.training_defaults.given:
        values = ", ".join(f"{key} {value}" for key, value in training.items())
        lines += ["", "training (the paper's values; study.training overrides them)", f"  {values}"]
    if plugin.option_schemas:
        lines += ["", "options"]
        lines += [_key(name, option) for name, option in plugin.option_schemas.items()]
    if plugin.artefacts:
        lines += ["", "artefacts (for figures: lines, scatter, bars)"]
        lines += [f"  {name}: {entry.description}" for name, entry in plugin.artefacts.items()]
    return "\n".join(lines)


def _key(name: str, entry: dict[str, Any]) -> str:
    """Return a key of a schema with its type, default and meaning."""
    allowed = " | ".join(map(str, entry["enum"])) if "enum" in entry else entry.get("type", "")
    default = f", default {entry['default']!r}" if "default" in entry else ""
    text = fill(entry.get("description", ""), WIDTH - 6)
    return f"  {name} ({allowed}{default})" + (f"\n{indent(text, '      ')}" if text else "")


def datasets(name: str | None = None) -> str:
    """Return all sources of datasets and schemes of partitions with their keys, or those of a name.

    Raises:
        FedLoomError: no source or scheme has this name.
    """
    known = fill(f"recipes (see fedloom data list): {', '.join(recipes.names())}", WIDTH)
    shown = _kinds({"datasets": "source", "partitions": "scheme"}, name)
    return "\n\n".join(shown if name else [known, *shown])


def outputs(name: str | None = None) -> str:
    """Return all kinds of tables and figures with their keys, or that of a name.

    Raises:
        FedLoomError: no kind has this name.
    """
    return "\n\n".join(_kinds({"tables": "table", "figures": "figure"}, name))


def _kinds(titles: dict[str, str], only: str | None) -> list[str]:
    """Return the kinds of sections with their keys, or those of a name, below the titles."""
    if only:
        check_known(only, [name for section in titles for name in KINDS[section]], "nothing named")
    shown = []
    for section, title in titles.items():
        for name in KINDS[section] if only is None else {only} & set(KINDS[section]):
            entry = kind_schema(section, name)
            about = " ".join(entry["description"].split())
            keys = [k for k in entry["properties"] if k != NAMED_BY[section]]
            rows = [_key(key, whole(entry["properties"][key], entry)) for key in keys]
            shown.append(
                "\n".join([f"{title}: {name}", indent(fill(about, WIDTH - 2), "  "), *rows])
            )
    return shown


def studies() -> str:
    """Return a line per study that ships: what it shows, on which data, with which methods."""
    rows = [study(file) for file in bundled_studies.studies()]
    heads = ["study", "shows", "data", "methods", "runs", "GPU hours"]
    widths = [None, 20, 22, 40, None, None]
    table = tabulate(rows, heads, maxcolwidths=widths, floatfmt=",.1f", missingval="?")
    rate = f"{RATES['float32']:.0e} operations per second"
    note = f"Hours of one GPU at {rate}, an estimate."
    if any(row[-1] is None for row in rows):
        note += " Those of studies on CLIP need the package: pip install 'fedloom[clip]'."
    return f"{table}\n\n{note}"


def study(file: Path) -> list[str | int | float | None]:
    """Return a study's file, what it shows, its data sets, methods, runs, and hours of a GPU.

    The hours are None if a package is missing that its backbone needs.
    """
    plan = read_plan([file])
    used = dict.fromkeys(run.method for run in plan.runs)
    pairs = [(run.dataset, *transferred_to(plan.settings, run)) for run in plan.runs]
    data = dict.fromkeys(chain(*pairs)) or plan.settings.select.datasets
    members = [plan.settings.methods[label].member for label in used]
    labels = [member.grid if member else label for label, member in zip(used, members, strict=True)]
    counts = Counter(labels)
    names = [f"{label} ({n})" if n > 1 else label for label, n in counts.items()]
    shows = ", ".join(plan.settings.study.shows) or re.split(r"[:.] ", header(file))[0].rstrip(".")
    name = str(file.relative_to(bundled_studies.FOLDER).with_suffix(""))
    try:
        hours = study_cost(plan).gpu_hours()
    except MissingExtraError:
        hours = None
    return [name, shows, ", ".join(data), ", ".join(names), len(plan.runs), hours]
