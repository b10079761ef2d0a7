"""From the merged config to settings: checked, and every default filled in. Imports no torch."""

from dataclasses import replace
from itertools import product
from typing import Any

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import checked
from fedloom.config import inherited, kind_plugins, method_labels, recipes
from fedloom.config.datasets import listing
from fedloom.config.grids import with_partitions
from fedloom.config.kinds import LIBRARIES, NAMED_BY, Catalogue, Entry, check_entry
from fedloom.config.output_kinds import OfPaper
from fedloom.config.protocols import check_parts, check_runs
from fedloom.config.published import read_paper
from fedloom.config.reading import CONFIG
from fedloom.config.settings import (
    Backbone,
    Dataset,
    Grid,
    Method,
    Output,
    Partition,
    Scenario,
    Selection,
    Settings,
    local_weights,
)
from fedloom.config.study import Config, Protocol
from fedloom.hooks.discovery import Found

Entries = dict[str, dict[str, Entry]]  # by section and label
GRIDS = ("grid", "grids")  # what kinds show that show members of one grid, or of several


def resolve_with(
    config: dict[str, Any], kinds: Catalogue, own: dict[str, Any] | None = None
) -> Settings:
    """Check the merged config, and return what its labels stand for.

    Args:
        kinds: of data sets, partitions, tables and figures; those of backbones are known here.
        own: what the study sets itself; it inherits the rest of `config`. Default: all of it.
    """
    own = config if own is None else own
    keys = with_partitions(checked(Config, config, CONFIG + " "))
    protocols = {}
    for label, entry in keys.partitions.items():  # the keys of its scheme are left
        path = ["partitions", label, "protocol"]
        protocol, where = entry.pop("protocol", {}), f"{CONFIG} {'.'.join(path)}"
        protocols[label] = checked(Protocol, protocol, where, path)
    methods, grids = method_labels.resolve_methods(
        method_labels.implied(keys.select.methods, keys.methods) | keys.methods, keys.study.training
    )
    selected = _selection(keys, methods, grids)
    entries = _entries(keys, kinds)  # last, since it imports the modules of all kinds
    used = {*selected.datasets}
    for label in selected.partitions:
        for name in entries["partitions"][label].keys.plain.get("transfer_to", ()):
            where = f"{CONFIG} partitions.{label}.transfer_to"
            check_known(name, keys.datasets, f"{where}: datasets have no label")
            used.add(name)
    paper, seed = keys.study.paper, keys.study.fixed_seeds.partition
    settings = Settings(
        study=keys.study,
        datasets={
            label: _dataset(label, entry, keys.datasets[label], label in used)
            for label, entry in entries["datasets"].items()
        },
        partitions={
            label: Partition(label, kind, ({} if seed is None else {"seed": seed}) | scheme.plain)
            for label, (kind, scheme) in entries["partitions"].items()
        },
        protocols=protocols,
        backbones={
            label: _backbone(label, entry, label in selected.backbones)
            for label, entry in entries["backbones"].items()
        },
        methods=methods,
        grids=grids,
        tables={},
        figures={},
        select=selected,
        citation=paper and read_paper(paper, f"{CONFIG} study.paper")["citation"],
    )
    study = inherited.capped(settings, own)
    settings = replace(settings, study=study, notes=tuple(inherited.notes(keys.study, study)))
    check_parts(settings, selected.methods)
    for section in ("tables", "figures"):
        settings = replace(settings, **_outputs(settings, section, entries[section], own))
    check_runs(settings)
    if settings.study.tune is None:
        return settings
    settings = method_labels.with_trials(settings, settings.study.tune)
    check_parts(settings, [trial.label for each in settings.trials.values() for trial in each])
    return settings


def _entries(keys: Config, kinds: Catalogue) -> Entries:
    """Return the entries of all sections, each checked against the keys of its kind."""
    entries: Entries = {
        "datasets": {
            label: recipes.check_dataset(label, entry, kinds["datasets"])
            for label, entry in keys.datasets.items()
        }
    }
    rooms = {**kinds, "backbones": LIBRARIES}
    for section in ("partitions", "backbones", "tables", "figures"):
        entries[section] = {
            label: check_entry(section, label, entry, rooms[section])
            for label, entry in getattr(keys, section).items()
        }
    return entries


def _selection(keys: Config, methods: Found[Method], grids: dict[str, Grid]) -> Selection:
    """Return the labels that the study runs, grids expanded."""
    select, where = keys.select, f"{CONFIG} select"
    for section in NAMED_BY:
        for label in getattr(select, section):
            check_known(label, getattr(keys, section), f"{where}.{section}: no label")
    scenarios = [Scenario(*labels) for labels in product(select.datasets, select.partitions)]
    if select.scenarios is not None:
        scenarios = [_scenario(name, keys, f"{where}.scenarios") for name in select.scenarios]
    return Selection(
        scenarios=tuple(scenarios),
        backbones=tuple(select.backbones),
        methods=tuple(method_labels.expand(select.methods, methods, grids, f"{where}.methods")),
        tables=tuple(select.tables),
        figures=tuple(select.figures),
    )


def _scenario(name: str, keys: Config, where: str) -> Scenario:
    """Return the scenario that "dataset/partition" names."""
    labels = name.split("/")
    if len(labels) != 2:
        raise FedLoomError(f"{where}: must be <dataset>/<partition>, got '{name}'")
    for section, label in zip(("datasets", "partitions"), labels, strict=True):
        check_known(label, getattr(keys, section), f"{where}: '{name}': {section} has no label")
    return Scenario(*labels)


def _dataset(label: str, entry: Entry, written: dict[str, Any], selected: bool) -> Dataset:
    """Return a dataset with what the recipe that is `written` says; list a selected one's files."""
    source, keys = entry
    dataset = Dataset(label, source, keys.plain, expected=keys.expected())
    if selected:
        dataset = replace(dataset, listing=_listing({"source": source} | dataset.settings))
    if "recipe" not in written:
        return dataset
    recipe = recipes.find(written["recipe"])
    expected, notes = recipe.size(dataset.settings), recipe.all_notes()
    return replace(dataset, expected=expected, domains=recipe.counts.domains, notes=notes)


def _listing(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return number and digest of the files that a dataset is made of."""
    if "parts" in entry:
        parts = {name: _listing(part) for name, part in entry["parts"].items()}
        return {"files": sum(p["files"] for p in parts.values() if p), "sha256": digest(parts)}
    plugin = kind_plugins.discover("source").get(entry["source"])
    return listing(entry, None if plugin is None else plugin.paths)


def _backbone(label: str, entry: Entry, selected: bool) -> Backbone:
    """Return a backbone; a selected one with the sha256 of local weights."""
    backbone = Backbone(label, entry.kind, entry.keys.plain)
    path = local_weights(backbone) if selected else None
    if path is None:
        return backbone
    if not path.is_file():
        raise FedLoomError(f"{CONFIG} backbones.{label}.weights: no such file '{path}'")
    return replace(backbone, sha256=sha256(path))


# ---- tables and figures --------------------------------------------------------------------------


def _outputs(
    settings: Settings, section: str, entries: dict[str, Entry], own: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of the settings that hold the selected tables, or figures.

    Those that the study inherits, and that do not suit its runs, are left out; if none does, there
    is something wrong with the runs.
    """
    outputs, refused = dict[str, Output](), list[FedLoomError]()
    for label in getattr(settings.select, section):
        try:
            outputs[label] = resolve_output(settings, section, label, entries[label])
        except FedLoomError as error:
            if inherited.applies(section, label, own):
                raise
            refused.append(error)
    if refused and not outputs:
        raise refused[0]
    selected = replace(settings.select, **{section: tuple(outputs)})
    left_out = (f"select.{section}: left out, since {error}" for error in refused)
    return {section: outputs, "select": selected, "notes": (*settings.notes, *left_out)}


def resolve_output(settings: Settings, section: str, label: str, entry: Entry) -> Output:
    """Return a table or figure with its runs, and what its kind reads of files and papers.

    Of `scenarios`, `backbones` and `methods`, omitted ones default to all those of the study, of
    scenarios those whose partition has the key that the kind needs.
    """
    where, keys, select = f"{CONFIG} {section}.{label}", entry.keys, settings.select
    known = {
        str(scenario): scenario
        for scenario in select.scenarios
        if keys.partition_key in (None, *settings.partitions[scenario.partition].settings)
    }
    if not known:
        raise FedLoomError(f"{where}: no partition of the study has {keys.partition_key}; set it")
    scenarios = _some(keys.scenarios, known, f"{where}.scenarios")
    names = _some(keys.backbones, select.backbones, f"{where}.backbones")
    shown = tuple(known[name] for name in scenarios)
    output = Output(section, label, entry.kind, keys, shown, tuple(names))
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
        method_labels.check_families(
            [settings.methods[name] for name in output.methods], backbones, where
        )
    for check in keys.requires:
        check(settings, output, where)
    if settings.study.evaluate_clients is not None and output.settings.get("target") is not None:
        raise FedLoomError(
            f"{where}.target: a sample of clients reaches it in another round; remove "
            "study.evaluate_clients, or leave it out"
        )
    output = keys.complete(settings, output, where)
    published = getattr(keys, "published", None)
    if published is None:
        return output
    numbers = _published_numbers(settings, output, published, f"{where}.published")
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
    wanted = method_labels.expand(names, settings.methods, settings.grids, f"{where}.methods")
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


def _published_numbers(
    settings: Settings, output: Output, published: OfPaper, where: str
) -> dict[str, Any]:
    """Return the entry with the paper's citation and the values of the rows that it names."""
    entry = published.model_dump()
    labels, members = (
        method_labels.method_names(settings.methods, settings.grids),
        set(settings.methods),
    )
    if output.keys.shows == "datasets":
        labels, members = [scenario.dataset for scenario in output.scenarios], set()
    for name in entry.get("rows", ()):
        if name not in members:
            check_known(name, labels, f"{where}.rows: the study has no")
    columns = [*map(str, output.scenarios), "average"]
    for name in entry.get("columns", ()):
        check_known(name, columns, f"{where}.columns: the study has no")
    paper = read_paper(published.paper, f"{where}.paper")
    if published.table not in paper["tables"]:
        tables = ", ".join(map(str, paper["tables"]))
        name = f"workflow/published/{published.paper}.yaml"
        raise FedLoomError(f"{where}.table: no Table {published.table} in {name}; known: {tables}")
    rows = paper["tables"][published.table]["rows"]
    printed = {"rows": rows, "columns": {column for row in rows.values() for column in row}}
    for key, names in printed.items():
        for label, name in entry.get(key, {}).items():
            check_known(name, names, f"{where}.{key}.{label}: the paper has no")
    # a kind that shows a grid finds its rows by the combinations' values
    values = {name: rows[name] for name in entry["rows"].values()} if "rows" in entry else rows
    return entry | {"citation": paper["citation"], "values": values}
