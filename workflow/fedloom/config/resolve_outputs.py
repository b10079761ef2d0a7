"""Resolve the tables and figures of a study: which runs each shows, and what its kind reads."""

from collections.abc import Collection
from dataclasses import replace
from itertools import product

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG, InvalidKeyError, KeyPath
from fedloom.config import method_labels
from fedloom.config.kinds import Entry
from fedloom.config.output_kinds import OfPaper
from fedloom.config.reading import read_paper
from fedloom.config.settings import OutputEntry, Settings


def with_outputs(
    settings: Settings, section: str, entries: dict[str, Entry], own: JsonDict
) -> Settings:
    """Return the settings with the selected tables, or with the selected figures.

    A table or figure may not suit the study's runs. If the study inherits it, it is left out, with
    a note; but if the study sets it itself, or if none would be left, an error is raised.
    """
    outputs = dict[str, OutputEntry]()
    refused = list[FedLoomError]()
    for label in getattr(settings.select, section):
        try:
            outputs[label] = _resolve_output(settings, section, label, entries[label])
        except FedLoomError as error:
            if section in own.get("select", {}) or label in own.get(section, {}):
                raise
            refused.append(error)
    if refused and not outputs:
        raise refused[0]

    left_out = [f"select.{section}: left out, since {error}" for error in refused]
    return replace(
        settings,
        **{section: outputs},
        select=replace(settings.select, **{section: tuple(outputs)}),
        notes=(*settings.notes, *left_out),
    )


def _resolve_output(settings: Settings, section: str, label: str, entry: Entry) -> OutputEntry:
    """Return a table or figure with the labels of its runs, and what its kind reads from files.

    Raises:
        InvalidKeyError: the output does not suit the study; the error is about the output's entry.
    """
    where = CONFIG / section / label
    output = with_labels(settings, OutputEntry(section, label, entry.kind, entry.values), where)
    _check_families(settings, output, where)
    check_requirements(settings, output, where)

    # what its kind reads from the study and from a paper
    output = complete_output(settings, output, where)
    published = getattr(entry.values, "published", None)
    if published is None:
        return output
    numbers = _published_numbers(settings, output, published, where / "published")
    return replace(output, published=numbers)


def with_labels(settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
    """Return an output with the labels of the scenarios, backbones and methods that it shows.

    Raises:
        InvalidKeyError: a label is unknown, or the output would show nothing.
    """
    entry = output.entry
    spec = entry.needs()
    select = settings.select
    known = {
        str(scenario): scenario
        for scenario in select.scenarios
        if spec.partition_key in (None, *settings.partitions[scenario.partition].settings)
    }
    if not known:
        raise where.error(f"no partition of the study has {spec.partition_key}; set it")

    names = _select_known(entry.scenarios, known, where / "scenarios")
    backbones = _select_known(entry.backbones, select.backbones, where / "backbones")
    output = replace(
        output, scenarios=tuple(known[name] for name in names), backbones=tuple(backbones)
    )
    if spec.shows in ("backbones", "datasets"):
        return output
    return replace(output, methods=tuple(_choose_methods(settings, output, where)))


def _check_families(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Check that what an output shows works on the families of its backbones.

    Raises:
        InvalidKeyError: a method, or a figure of backbones, does not work on one of them.
    """
    families_of = {f"methods.{name}": settings.methods[name].families for name in output.methods}
    if output.entry.needs().shows == "backbones":
        families_of = {"the figure": ("vit",)}
    for (subject, families), name in product(families_of.items(), output.backbones):
        family = settings.backbones[name].family
        if family not in families:
            raise where.error(
                f"{subject} works on a {' or '.join(families)}, backbones.{name} is a {family}; "
                "show them in different tables or figures (methods, backbones)"
            )


def check_requirements(settings: Settings, output: OutputEntry, where: KeyPath) -> None:
    """Check what an output's kind requires of the study; raise an InvalidKeyError if it lacks."""
    for check in output.entry.needs().requires:
        check(settings, output, where)
    if settings.study.evaluate_clients is not None and output.settings.get("target") is not None:
        raise (where / "target").error(
            "a sample of clients reaches it in another round; remove study.evaluate_clients, or "
            "leave it out"
        )


def complete_output(settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
    """Return the output with what its kind reads; an error becomes one about the output's entry."""
    try:
        return output.entry.complete(settings, output, where)
    except InvalidKeyError:
        raise
    except FedLoomError as error:
        raise InvalidKeyError(error, where) from None


def _select_known(wanted: list[str] | None, known: Collection[str], where: KeyPath) -> list[str]:
    """Return the wanted names in the order of the known names; if `wanted` is None, return all.

    Raises:
        InvalidKeyError: a wanted name is not known.
    """
    for name in wanted or ():
        where.check_known(name, known, "the study has no")
    return [name for name in known if wanted is None or name in wanted]


def _choose_methods(settings: Settings, output: OutputEntry, where: KeyPath) -> list[str]:
    """Return the labels of the methods that an output shows, in the order of its key `methods`.

    Raises:
        InvalidKeyError: the study runs none of them.
    """
    running = settings.select.methods
    names = getattr(output.entry, "methods", None) or running
    spec = output.entry.needs()
    artefact = spec.artefact
    needs_grids = spec.shows in ("grid", "grids")

    # the named methods that run and give what the kind shows
    chosen = list[str]()
    for label in method_labels.expand(names, settings.methods, settings.grids, where / "methods"):
        method = settings.methods[label]
        if label not in running:
            continue
        if artefact is not None and artefact not in method.artefacts:
            continue
        if needs_grids and method.member is None:
            continue
        chosen.append(label)

    if not chosen:
        lack = ""
        if needs_grids:
            lack = " that is of a grid (methods.<label>.grid)"
        elif artefact:
            lack = f" that gives '{artefact}' with its options (method.toml)"
        raise where.error(
            f"the study runs none of its methods{lack}; leave it out of select.{output.section}"
        )

    if spec.shows == "grid":
        members = [settings.methods[label].member for label in chosen]
        labels = list(dict.fromkeys(member.grid for member in members if member))
        if len(labels) > 1:
            raise where.error(f"its methods are of the grids {', '.join(labels)}; name one")
    return chosen


def _published_numbers(
    settings: Settings, output: OutputEntry, published: OfPaper, where: KeyPath
) -> JsonDict:
    """Return the key `published` of an output with the paper's citation and the rows' values.

    Raises:
        InvalidKeyError: the paper, its table, or a row or column of either side is unknown.
    """
    entry = published.model_dump()
    paper = read_paper(published.paper, where / "paper")
    if published.table not in paper["tables"]:
        known = ", ".join(map(str, paper["tables"]))
        raise (where / "table").error(f"no Table {published.table}; known: {known}")
    rows = paper["tables"][published.table]["rows"]

    # the rows and columns of both sides must exist
    labels = [*settings.methods, *settings.grids]
    if output.entry.needs().shows == "datasets":
        labels = [scenario.dataset for scenario in output.scenarios]
    columns = [*map(str, output.scenarios), "average"]
    printed = set().union(*rows.values())
    for key, ours, theirs in (("rows", labels, rows), ("columns", columns, printed)):
        for label, name in entry.get(key, {}).items():
            (where / key).check_known(label, ours, "the study has no")
            (where / key / label).check_known(name, theirs, "the paper has no")

    # a kind that shows a grid needs all rows: it finds each by the values of a combination
    values = rows
    if "rows" in entry:
        values = {name: rows[name] for name in entry["rows"].values()}
    return entry | {"citation": paper["citation"], "values": values}
