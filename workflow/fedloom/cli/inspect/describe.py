"""Describe methods, kinds and the costs of studies as text for the terminal."""

import ast
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill, indent

from rich.filesize import decimal
from tabulate import tabulate

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.folders import read_python
from fedloom.common.json_types import JsonDict
from fedloom.config.config_schema import kind_schema, whole
from fedloom.config.kind_plugins import broken_plugins
from fedloom.config.kinds import KINDS, SELECTOR_KEY
from fedloom.config.narrowing import in_words
from fedloom.hooks.manifest import MethodManifest, discover_methods, find_method
from fedloom.planning.load_plan import CHANGES_KEY, ONLY_KEY, load_plan
from fedloom.planning.resources.cost import RATES, StudyCost, study_cost
from fedloom.planning.resources.estimates import CORE_OPERATIONS_PER_SECOND

TEXT_WIDTH = 96

# ---- methods -------------------------------------------------------------------------------------


def first_line(plugin: MethodManifest) -> str:
    """Return the first line of a plugin's docstring, without the plugin's name.

    The docstring is read from the file, without an import of the plugin.
    """
    docstring = ast.get_docstring(read_python(plugin.file)) or "No docstring."
    line = docstring.splitlines()[0]
    text = line.partition(": ")[2] or line
    return text[0].upper() + text[1:]


def list_methods() -> str:
    """Return a line per method and per wrapper: its name, title, backbone, and what it does."""
    # a broken plugin does not hide the others, even if its plugin.py is not valid Python
    plugins = discover_methods()
    rows: dict[str, list[list[str]]] = {"method": [], "wrapper": []}
    errors = list(plugins.errors.values())
    for plugin in plugins.values():
        try:
            facts = [plugin.name, plugin.title, plugin.family or "any", first_line(plugin)]
        except FedLoomError as error:
            errors.append(error)
        else:
            rows[plugin.kind].append(facts)

    columns = ["title", "backbone", "what it does"]
    parts = [
        tabulate(rows["method"], ["method", *columns]),
        tabulate(rows["wrapper"], ["wrapper", *columns]),
        "A wrapper changes a method, whose key `wrappers` names it.",
    ]
    if errors:
        parts.append("\n".join(f"broken: {error}" for error in errors))
    return "\n\n".join(parts)


def describe_method(name: str) -> str:
    """Return the facts in a plugin's method.toml, as text."""
    plugin = find_method(name)

    # facts that a plugin does not state are left out
    values = {
        "title": plugin.title,
        "kind": plugin.kind,
        "backbone": plugin.family,
        "needs": ", ".join(plugin.needs),
        "paper": plugin.paper.citation,
        "link": plugin.paper.address,
        "equations": plugin.paper.equations,
        "file": plugin.file,
    }
    lines = [plugin.name]
    lines += [f"  {key:<10}{value}" for key, value in values.items() if value]

    training = plugin.training_defaults.given
    if training:
        values = ", ".join(f"{key} {value}" for key, value in training.items())
        lines += ["", "training (from method.toml; a study may override them)", f"  {values}"]

    if plugin.option_schemas:
        lines += ["", "options"]
        lines += [_describe_key(name, schema) for name, schema in plugin.option_schemas.items()]

    if plugin.artefacts:
        lines += ["", "artefacts (tables that the figures lines, scatter and bars can show)"]
        lines += [f"  {name}: {entry.description}" for name, entry in plugin.artefacts.items()]
    return "\n".join(lines)


def _describe_key(name: str, schema: JsonDict) -> str:
    """Return a key of a schema with its type or types, its default and its meaning, as text."""
    alternatives = schema.get("anyOf", [schema])
    about = " or ".join(one["type"] for one in alternatives if "type" in one)
    if "enum" in schema:
        about = " | ".join(map(str, schema["enum"]))
    if "default" in schema:
        about += f", default {schema['default']!r}"

    line = f"  {name} ({about})"
    meaning = fill(" ".join(schema.get("description", "").split()), TEXT_WIDTH - 6)
    if not meaning:
        return line
    return f"{line}\n{indent(meaning, '      ')}"


# ---- kinds of entries of the config --------------------------------------------------------------


def describe_kinds(only: str | None = None, **titles: str) -> str:
    """Return the kinds of entry of some sections of the config, with their keys, as text.

    Args:
        only: the name of a kind, if only this one is to be described.
        titles: maps each section to the word for its kinds, such as datasets="source".

    Raises:
        FedLoomError: `only` is unknown, or its plugin is broken.
    """
    if only is not None:
        errors = broken_plugins()
        if only in errors:
            raise errors[only]
        known = list[str]()
        for section in titles:
            known += KINDS[section]
        check_known(only, known, "nothing named")

    shown = list[str]()
    for section, title in titles.items():
        for name in KINDS[section]:
            if only in (None, name):
                shown.append(_describe_kind(section, title, name))
    return "\n\n".join(shown)


def _describe_kind(section: str, title: str, name: str) -> str:
    """Return a kind's title, description and keys, as text."""
    schema = kind_schema(section, name)
    about = " ".join(schema["description"].split())
    lines = [f"{title}: {name}", indent(fill(about, TEXT_WIDTH - 2), "  ")]
    for key, entry in schema["properties"].items():
        if key != SELECTOR_KEY[section]:
            lines.append(_describe_key(key, whole(entry, schema)))
    return "\n".join(lines)


# ---- costs ---------------------------------------------------------------------------------------


def describe_cost(
    files: Sequence[Path], tera: float | None, changes: Sequence[str] = (), only: Sequence[str] = ()
) -> str:
    """Return the cost of a study, as text.

    Args:
        files: the study's files; default: config.yaml.
        tera: the rate of the GPU, in 10^12 operations per second; None: an assumed one.
        changes: changes of single keys, such as "study.rounds=4".
        only: labels and seeds to which the study is narrowed, such as "methods=sgpt,pfedpg".
    """
    plan = load_plan(files, {CHANGES_KEY: changes, ONLY_KEY: only})
    total = study_cost(plan)
    lines = {"study": plan.name}
    if plan.settings.narrowing:
        lines["narrowed to"] = in_words(plan.settings.narrowing)
    lines |= _counts(total)
    lines |= _hours(total, tera)

    disk = ", ".join(f"{name} {decimal(int(1e6 * size))}" for name, size in total.disk.items())
    lines["disk"] = f"{disk}; the states of runs take more"
    return tabulate(lines.items(), tablefmt="plain", disable_numparse=True)


def _counts(total: StudyCost) -> dict[str, str]:
    """Return how many runs, jobs and operations a study has, as text."""
    runs = f"{total.runs:,}"
    if total.trials:
        runs += f", after {total.trials} trials that choose options"

    jobs = ", ".join(f"{count:,} {rule}" for rule, count in total.jobs.items())
    return {
        "runs": runs,
        "jobs": f"{sum(total.jobs.values()):,}: {jobs}",
        "operations": f"{total.operations:.2g}",
    }


def _hours(total: StudyCost, tera: float | None) -> dict[str, str]:
    """Return how long a study takes on one GPU, on many GPUs, and on a core, as text."""
    # operations per second; by default, the assumed rate of a GPU in the study's number format
    if tera is None:
        rate = RATES[total.precision]
        speed = f"{rate / 1e12:g} TFLOP/s (assumed)"
    else:
        rate = 1e12 * tera
        speed = f"{tera:g} TFLOP/s"

    # the rounds of a run follow each other, so more than one GPU does not help it
    longest_hours = total.longest / rate / 3600
    core_hours = total.gpu_hours(CORE_OPERATIONS_PER_SECOND) + total.seconds / 3600
    return {
        "one GPU": f"{duration(total.gpu_hours(rate))} at {speed}",
        "longest run": f"{duration(longest_hours)} on a GPU; more GPUs do not shorten it",
        "without GPU": (
            f"{duration(core_hours)} of one core at {CORE_OPERATIONS_PER_SECOND:.0e} operations "
            "per second"
        ),
    }


def duration(hours: float) -> str:
    """Write a time as people say it: in minutes, hours or days."""
    if hours < 1:
        return f"{max(1, round(60 * hours))} min"
    if hours < 48:
        return f"{hours:.1f} h"
    return f"{hours / 24:.1f} days"
