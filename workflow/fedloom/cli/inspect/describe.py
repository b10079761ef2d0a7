"""Methods, kinds, studies and their costs as text for the terminal."""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, takewhile
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from rich.filesize import decimal
from tabulate import tabulate

from fedloom.cli.make.config_schema import kind_schema, whole
from fedloom.cli.run import bundled_studies
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.folders import read_python
from fedloom.config.kinds import KINDS, NAMED_BY, broken
from fedloom.hooks.manifest import Plugin, discover, find
from fedloom.planning.job_factory import transferred_to
from fedloom.planning.load_plan import load_plan, read_plan
from fedloom.planning.resources.cost import RATES, study_cost
from fedloom.planning.resources.estimates import RATE

WIDTH = 96


def summary(plugin: Plugin) -> str:
    """Return the first line of a plugin's docstring, which is not imported, without the name."""
    line = (ast.get_docstring(read_python(plugin.file)) or "No docstring.").splitlines()[0]
    text = line.partition(": ")[2] or line
    return text[0].upper() + text[1:]


def header(study: Path) -> str:
    """Return the comment at the head of a study, which says what it shows and what it needs."""
    comment = takewhile(lambda line: line.startswith("#"), study.read_text().splitlines())
    return " ".join(line.lstrip("# ") for line in comment)


def methods() -> str:
    """Return a line per plugin: name, title, backbone and what it does."""
    plugins = discover()
    rows = list[list[str]]()
    broken = list(plugins.broken.values())
    for plugin in plugins.values():
        try:
            rows.append([plugin.name, plugin.title, plugin.family or "any", summary(plugin)])
        except FedLoomError as error:  # its plugin.py is not Python
            broken.append(error)
    table = tabulate(rows, ["name", "title", "backbone", "what it does"])
    return "\n".join([table, *(f"broken: {error}" for error in broken)])


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
    options = [_key(name, option) for name, option in plugin.option_schemas.items()]
    lines += ["", "options", *options] if options else []
    shown = [f"  {name}: {entry.description}" for name, entry in plugin.artefacts.items()]
    lines += ["", "artefacts (for figures: lines, scatter, bars)", *shown] if shown else []
    return "\n".join(lines)


def _key(name: str, entry: dict[str, Any]) -> str:
    """Return a key of a schema with its type, default and meaning."""
    allowed = " | ".join(map(str, entry["enum"])) if "enum" in entry else entry.get("type", "")
    default = f", default {entry['default']!r}" if "default" in entry else ""
    text = fill(entry.get("description", ""), WIDTH - 6)
    return f"  {name} ({allowed}{default})" + (f"\n{indent(text, '      ')}" if text else "")


def kinds(only: str | None = None, **titles: str) -> str:
    """Return the kinds of entry, or only one, with their keys.

    Args:
        titles: the sections of the config whose kinds these are, and how the kinds are called.
    """
    if only:
        if only in (errors := broken()):
            raise errors[only]
        check_known(only, [name for section in titles for name in KINDS[section]], "nothing named")
    shown = []
    for section, title in titles.items():
        for name in KINDS[section] if only is None else {only} & set(KINDS[section]):
            entry = kind_schema(section, name)
            about = " ".join(entry["description"].split())
            keys = [k for k in entry["properties"] if k != NAMED_BY[section]]
            rows = [_key(key, whole(entry["properties"][key], entry)) for key in keys]
            shown += ["\n".join([f"{title}: {name}", indent(fill(about, WIDTH - 2), "  "), *rows])]
    return "\n\n".join(shown)


def studies() -> str:
    """Return a line per study that ships: what it shows, on which data, with which methods."""
    rows = [study(file) for file in bundled_studies.studies()]
    heads = ["study", "shows", "data", "methods", "runs", "GPU hours"]
    widths = [None, 20, 22, 40, None, None]
    table = tabulate(rows, heads, maxcolwidths=widths, floatfmt=",.1f", missingval="?")
    note = f"Hours of one GPU at {RATES['float32']:.0e} operations per second, an estimate"
    return f"{table}\n\n{note}; ?: of CLIP, which needs the package: pip install 'fedloom[clip]'."


def study(file: Path) -> list[str | int | float | None]:
    """Return a study's name, what it shows, its data sets, methods, runs, and hours of a GPU.

    The hours are None if a package is missing that its backbone needs.
    """
    plan = read_plan([file])
    pairs = [(run.dataset, *transferred_to(plan.settings, run)) for run in plan.runs]
    data = dict.fromkeys(chain(*pairs)) or plan.settings.select.datasets
    used = [plan.settings.methods[label] for label in dict.fromkeys(r.method for r in plan.runs)]
    counts = Counter(each.member.grid if each.member else each.label for each in used)
    names = [f"{label} ({n})" if n > 1 else label for label, n in counts.items()]
    shows = ", ".join(plan.settings.study.shows) or re.split(r"[:.] ", header(file))[0].rstrip(".")
    try:
        hours = study_cost(plan).gpu_hours()
    except FedLoomError:
        hours = None
    name = bundled_studies.name_of(file)
    return [name, shows, ", ".join(data), ", ".join(names), len(plan.runs), hours]


def cost(files: Sequence[Path], tera: float | None) -> str:
    """Return what a study costs on a GPU of `tera` times 10^12 operations per second."""
    plan = load_plan(files)
    total = study_cost(plan)
    rate = RATES[total.precision] if tera is None else 1e12 * tera
    trials = f", and {total.trials} trials before them" if total.trials else ""
    jobs = ", ".join(f"{count:,} {rule}" for rule, count in total.jobs.items())
    disk = ", ".join(f"{kind} {decimal(int(1e6 * size))}" for kind, size in total.disk.items())
    alone = total.gpu_hours(RATE) + total.seconds / 3600
    facts = {
        "study": plan.name,
        "runs": f"{total.runs:,}{trials}",
        "jobs": f"{sum(total.jobs.values()):,}: {jobs}",
        "operations": f"{total.operations:.2g}",
        "one GPU": f"{hours(total.gpu_hours(rate))} at {rate / 1e12:g} tera a second (assumed)",
        "longest run": f"{hours(total.longest / rate / 3600)}, which no second GPU shortens",
        "cores alone": f"{hours(alone)} of one core (at {RATE:.0e} a second)",
        "disk": f"{disk}; states of runs beside them",
    }
    return tabulate(facts.items(), tablefmt="plain", disable_numparse=True)


def hours(number: float) -> str:
    """Write a time in hours as people say it."""
    if number < 1:
        return f"{max(1, round(60 * number))} min"
    return f"{number:.1f} h" if number < 48 else f"{number / 24:.1f} days"
