"""Tables and figures: which methods they show, and what of files and papers belongs to them."""

from dataclasses import replace
from typing import Any

from fedloom.common import schema
from fedloom.common.checkout import ROOT, resource
from fedloom.common.errors import FedLoomError
from fedloom.config.claims import resolve_claims
from fedloom.config.kinds import Kind, kind_of
from fedloom.config.method_labels import check_families, expand, method_names
from fedloom.config.protocol_table import protocol_rows
from fedloom.config.reading import CONFIG, read
from fedloom.config.requirements import NEEDS
from fedloom.config.settings import Output, Settings

GRIDS = ("grid", "grids")  # what kinds show that show members of one grid, or of several


def resolve_output(settings: Settings, output: Output, entry: dict[str, Any]) -> Output:
    """Return the output with its runs, its class labels and its published numbers filled in.

    Args:
        entry: as the config has it. Of `scenarios`, `backbones` and `methods`, what is not named
            is all that the study runs.

    Raises:
        FedLoomError: a label that is not there, a method that does not work on a backbone, nothing
            that the kind could show, or a need of the kind that the study does not meet.
    """
    where, kind = f"{CONFIG} {output.section}.{output.label}", kind_of(output.section, output.kind)
    select = settings.select
    known = {str(scenario): scenario for scenario in select.scenarios}
    scenarios = _some(entry.get("scenarios"), list(known), f"{where}.scenarios")
    backbones = _some(entry.get("backbones"), list(select.backbones), f"{where}.backbones")
    output = replace(
        output, scenarios=tuple(known[name] for name in scenarios), backbones=tuple(backbones)
    )
    if "superclasses" in output.settings:
        labels = _class_labels(output.settings["superclasses"], f"{where}.superclasses")
        output = replace(output, settings=output.settings | {"superclass_of": labels})
    if kind.shows == "datasets":
        if output.published is not None:
            published = _published(settings, output, output.published, f"{where}.published")
            output = replace(output, published=published)
        return output
    if kind.shows == "backbones":
        for label in backbones:
            if settings.backbones[label].family != "vit":
                raise FedLoomError(f"{where}: backbones.{label} is no vit; leave the figure out")
        return output
    chosen = _choose_methods(settings, output, kind, entry.get("methods"), where)
    output = replace(output, methods=tuple(chosen))
    check_families(
        [settings.methods[label] for label in chosen],
        [settings.backbones[label] for label in backbones],
        where,
    )
    for need in kind.needs:
        NEEDS[need](settings, output, where)
    if output.kind == "claims":
        output = resolve_claims(settings, output, where)
    if output.published is not None:
        published = _published(settings, output, output.published, f"{where}.published")
        output = replace(output, published=published)
    if kind.shows == "settings":
        rows = protocol_rows(settings, output)
        output = replace(output, methods=(), settings=output.settings | {"rows": rows})
    return output


def _some(wanted: list[str] | None, known: list[str], where: str) -> list[str]:
    """Return those of the known names that are wanted, in the order of the known ones.

    Raises:
        FedLoomError: a wanted name is not among the known ones.
    """
    if wanted is None:
        return known
    for name in wanted:
        if name not in known:
            hint = schema.suggestion(name, known)
            raise FedLoomError(f"{where}: the study runs no '{name}'; {hint}")
    return [name for name in known if name in wanted]


def _choose_methods(
    settings: Settings, output: Output, kind: Kind, methods: list[str] | None, where: str
) -> list[str]:
    """Return the labels that the output shows, in the order in which they were asked for."""
    running = settings.select.methods
    names = list(running) if methods is None else methods
    wanted = expand(names, settings.methods, settings.grids, f"{where}.methods")
    artefact = kind.artefact_of(output.settings)
    chosen = [
        label
        for label in wanted
        if label in running
        and (artefact is None or artefact in settings.methods[label].artefacts)
        and (kind.shows not in GRIDS or settings.methods[label].member is not None)
    ]
    if not chosen:
        lack = f" that gives '{artefact}' with its options (method.toml)" if artefact else ""
        lack = " that is of a grid (methods.<label>.grid)" if kind.shows in GRIDS else lack
        raise FedLoomError(
            f"{where}: the study runs none of its methods{lack}; leave it out of "
            f"select.{output.section}"
        )
    if kind.shows == "grid":
        members = [settings.methods[label].member for label in chosen]
        labels = list(dict.fromkeys(member.grid for member in members if member))
        if len(labels) > 1:
            line = f"{where}: its methods are of the grids {', '.join(labels)}; name one"
            raise FedLoomError(line)
    return chosen


def _class_labels(path: str, where: str) -> dict[str, str]:
    """Read a YAML file that gives every class a label.

    Raises:
        FedLoomError: no such file, or a label that is no text.
    """
    file = resource(path)
    if not file.is_file():
        raise FedLoomError(f"{where}: no such file '{path}'")
    labels = read(file)
    for name, label in labels.items():
        if not isinstance(label, str):
            raise FedLoomError(f"{where}: {path}: '{name}: {label}' is no text; put it in quotes")
    return labels


def published_paper(paper: str, where: str) -> dict[str, Any]:
    """Return what workflow/published has of a paper: `citation` and `tables`.

    Raises:
        FedLoomError: there is no such paper; names `where`.
    """
    file = ROOT / "workflow/published" / f"{paper}.yaml"
    if not file.is_file():
        papers = sorted(path.stem for path in file.parent.glob("*.yaml"))
        raise FedLoomError(f"{where}.paper: no '{paper}'; known: {', '.join(papers)}")
    return schema.read_yaml(file)


def _published(
    settings: Settings, output: Output, entry: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return the entry with the paper's citation and the values of the rows that it names.

    Raises:
        FedLoomError: no such paper, table, row or column, here or in the paper.
    """
    pairs = [str(scenario) for scenario in output.scenarios]
    labels = method_names(settings.methods, settings.grids)
    rows_here = (settings.methods, labels)
    if kind_of(output.section, output.kind).shows == "datasets":
        names = list(dict.fromkeys(scenario.dataset for scenario in output.scenarios))
        rows_here = (names, names)
    checks = [("rows", *rows_here), ("columns", [*pairs, "average"], pairs)]
    for key, known, names in checks:
        for name in entry.get(key, ()):
            if name not in known:
                hint = schema.suggestion(name, names)
                raise FedLoomError(f"{where}.{key}: no '{name}' here; {hint}")
    paper = published_paper(entry["paper"], where)
    if entry["table"] not in paper["tables"]:
        tables = ", ".join(map(str, paper["tables"]))
        name = f"workflow/published/{entry['paper']}.yaml"
        raise FedLoomError(f"{where}.table: no Table {entry['table']} in {name}; known: {tables}")
    rows = paper["tables"][entry["table"]]["rows"]
    columns = {column for row in rows.values() for column in row}
    for key, printed in (("rows", rows), ("columns", columns)):
        for label, name in entry.get(key, {}).items():
            if name not in printed:
                hint = schema.suggestion(name, list(printed))
                raise FedLoomError(f"{where}.{key}.{label}: no '{name}' in the paper; {hint}")
    # a kind that shows a grid finds its rows by the combinations' values
    values = {name: rows[name] for name in entry["rows"].values()} if "rows" in entry else rows
    return entry | {"citation": paper["citation"], "values": values}
