"""Tables and figures: which runs they show, and what of files and papers belongs to them."""

from dataclasses import replace
from typing import Any

from fedloom.common import schema
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, check_known
from fedloom.config.kinds import Entry
from fedloom.config.method_labels import check_families, expand, method_names
from fedloom.config.reading import CONFIG
from fedloom.config.settings import Output, Settings

GRIDS = ("grid", "grids")  # what kinds show that show members of one grid, or of several


def resolve_output(settings: Settings, section: str, label: str, entry: Entry) -> Output:
    """Return a table or figure with its runs, and what its kind reads of files and papers.

    Of `scenarios`, `backbones` and `methods`, omitted ones default to all those of the study.
    """
    where, keys, select = f"{CONFIG} {section}.{label}", entry.keys, settings.select
    known = {str(scenario): scenario for scenario in select.scenarios}
    scenarios = _some(keys.scenarios, known, f"{where}.scenarios")
    names = _some(keys.backbones, select.backbones, f"{where}.backbones")
    output = Output(
        section,
        label,
        entry.kind,
        keys,
        scenarios=tuple(known[name] for name in scenarios),
        backbones=tuple(names),
    )
    backbones = [settings.backbones[name] for name in names]
    if keys.shows == "backbones":
        for backbone in backbones:
            if backbone.family != "vit":
                raise FedLoomError(
                    f"{where}: this figure needs a ViT, but backbones.{backbone.label} is a "
                    f"{backbone.family}; remove it from select.figures"
                )
    elif keys.shows != "datasets":
        output = replace(output, methods=tuple(_choose_methods(settings, output, where)))
        check_families([settings.methods[name] for name in output.methods], backbones, where)
    for need in keys.needs:
        need(settings, output, where)
    output = keys.complete(settings, output, where)
    published = getattr(keys, "published", None)
    if published is None:
        return output
    numbers = _published(settings, output, published.model_dump(), f"{where}.published")
    return replace(output, published=numbers)


def _some(wanted: list[str] | None, known: Any, where: str) -> list[str]:
    """Return those of the known names that are wanted (None: all), in the order of the known."""
    for name in wanted or ():
        check_known(name, known, f"{where}: the study has no")
    return [name for name in known if wanted is None or name in wanted]


def _choose_methods(settings: Settings, output: Output, where: str) -> list[str]:
    """Return the labels that the output shows, in the order in which they are named."""
    running, keys = settings.select.methods, output.keys
    names = getattr(keys, "methods", None)
    names = list(running) if names is None else names
    wanted = expand(names, settings.methods, settings.grids, f"{where}.methods")
    artefact = keys.artefact_name
    chosen = [
        label
        for label in wanted
        if label in running
        and (artefact is None or artefact in settings.methods[label].artefacts)
        and (keys.shows not in GRIDS or settings.methods[label].member is not None)
    ]
    if not chosen:
        lack = f" that gives '{artefact}' with its options (method.toml)" if artefact else ""
        lack = " that is of a grid (methods.<label>.grid)" if keys.shows in GRIDS else lack
        raise FedLoomError(
            f"{where}: the study runs none of its methods{lack}; leave it out of "
            f"select.{output.section}"
        )
    if keys.shows == "grid":
        members = [settings.methods[label].member for label in chosen]
        labels = list(dict.fromkeys(member.grid for member in members if member))
        if len(labels) > 1:
            line = f"{where}: its methods are of the grids {', '.join(labels)}; name one"
            raise FedLoomError(line)
    return chosen


def published_paper(paper: str, where: str) -> dict[str, Any]:
    """Return what workflow/published has of a paper: `citation` and `tables`."""
    file = ROOT / "workflow/published" / f"{paper}.yaml"
    if not file.is_file():
        papers = sorted(path.stem for path in file.parent.glob("*.yaml"))
        raise FedLoomError(f"{where}.paper: no '{paper}'; known: {', '.join(papers)}")
    return schema.read_yaml(file)


def _published(
    settings: Settings, output: Output, entry: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return the entry with the paper's citation and the values of the rows that it names."""
    labels, members = method_names(settings.methods, settings.grids), set(settings.methods)
    if output.keys.shows == "datasets":
        labels, members = [scenario.dataset for scenario in output.scenarios], set()
    for name in entry.get("rows", ()):
        if name not in members:
            check_known(name, labels, f"{where}.rows: the study has no")
    for name in entry.get("columns", ()):
        check_known(
            name, [*map(str, output.scenarios), "average"], f"{where}.columns: the study has no"
        )
    paper = published_paper(entry["paper"], where)
    if entry["table"] not in paper["tables"]:
        tables = ", ".join(map(str, paper["tables"]))
        name = f"workflow/published/{entry['paper']}.yaml"
        raise FedLoomError(f"{where}.table: no Table {entry['table']} in {name}; known: {tables}")
    rows = paper["tables"][entry["table"]]["rows"]
    columns = {column for row in rows.values() for column in row}
    for key, printed in (("rows", rows), ("columns", columns)):
        for label, name in entry.get(key, {}).items():
            check_known(name, printed, f"{where}.{key}.{label}: the paper has no")
    # a kind that shows a grid finds its rows by the combinations' values
    values = {name: rows[name] for name in entry["rows"].values()} if "rows" in entry else rows
    return entry | {"citation": paper["citation"], "values": values}
