"""Turn the merged config into settings: check it, and fill in every default, without torch."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG, InvalidKeyError, KeyPath
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import checked
from fedloom.config import kinds, method_labels, recipes
from fedloom.config.datasets import listing
from fedloom.config.grids import with_partitions
from fedloom.config.kinds import SELECTOR_KEY, Entry, check_entry
from fedloom.config.output_kinds import OfPaper
from fedloom.config.protocols import check_parts, check_runs, fit_inherited_keys, notes_on
from fedloom.config.reading import read_paper
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
from fedloom.hooks.discovery import PluginCatalogue


def resolve_with(config: JsonDict, own: JsonDict | None = None) -> Settings:
    """Check and resolve the merged config.

    `own` holds the keys that the study sets itself; it inherits all other keys. By default, it sets
    all keys itself.

    Raises:
        InvalidKeyError: a key is wrong, or does not suit the study.
    """
    if own is None:
        own = config
    settings, entries = _labels(config)

    # the study's keys, with inherited ones lowered to fit
    inherited = settings.study
    study = fit_inherited_keys(settings, own)
    notes = (*notes_on(inherited, study), *_notes_on_backbones(settings))
    settings = replace(settings, study=study, notes=notes)

    # check what can only be checked with several labels together
    check_parts(settings, settings.select.methods)
    for section in ("tables", "figures"):
        settings = replace(settings, **_outputs(settings, section, entries[section], own))
    check_runs(settings)

    # the trials that choose options
    if study.tune is not None:
        settings = method_labels.with_trials(settings, study.tune)
        labels = list[str]()
        for trials in settings.trials.values():
            labels += [trial.label for trial in trials]
        check_parts(settings, labels)
    return settings


def _labels(config: JsonDict) -> tuple[Settings, dict[str, dict[str, Entry]]]:
    """Return settings without tables and figures, and the checked entries of all kinds.

    Tables and figures are resolved later, since they depend on the study's keys.
    """
    keys = with_partitions(checked(Config, config, CONFIG))
    protocols = _protocols(keys)
    methods, grids = method_labels.resolve_methods(
        keys.select.methods, keys.methods, keys.study.training
    )
    selected = _selection(keys, methods, grids)

    # this comes last, since it imports the modules of all kinds
    entries = _entries(keys)
    used = _used_datasets(keys, selected, entries["partitions"])

    seed = keys.study.fixed_seeds.partition
    partitions = {}
    for label, (kind, scheme) in entries["partitions"].items():
        given = scheme.plain
        if seed is not None:
            given = {"seed": seed, **given}
        partitions[label] = Partition(label, kind, given)

    citation = None
    if keys.study.paper:
        citation = read_paper(keys.study.paper, CONFIG / "study" / "paper")["citation"]

    settings = Settings(
        study=keys.study,
        datasets={
            label: _dataset(label, entry, keys.datasets[label], label in used)
            for label, entry in entries["datasets"].items()
        },
        partitions=partitions,
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
        citation=citation,
    )
    return settings, entries


def _protocols(keys: Config) -> dict[str, Protocol]:
    """Take the key `protocol` out of the entries of partitions, and return the protocols by label.

    All other keys of an entry are a scheme's.
    """
    protocols = {}
    for label, entry in keys.partitions.items():
        where = CONFIG / "partitions" / label / "protocol"
        protocols[label] = checked(Protocol, entry.pop("protocol", {}), where)
    return protocols


def _entries(keys: Config) -> dict[str, dict[str, Entry]]:
    """Check the entries of all kinds, and return them by section and label."""
    entries = dict[str, dict[str, Entry]]()
    for section in SELECTOR_KEY:
        check = partial(check_entry, section)
        if section == "datasets":
            check = recipes.check_dataset
        written = getattr(keys, section)
        entries[section] = {label: check(label, entry) for label, entry in written.items()}
    return entries


def _used_datasets(keys: Config, selected: Selection, partitions: dict[str, Entry]) -> set[str]:
    """Return the labels of the datasets that the study trains on or only tests on."""
    used = {*selected.datasets}
    for label in selected.partitions:
        for name in partitions[label].keys.plain.get("transfer_to", ()):
            where = CONFIG / "partitions" / label / "transfer_to"
            where.check_known(name, keys.datasets, "datasets have no label")
            used.add(name)
    return used


def _notes_on_backbones(settings: Settings) -> Iterator[str]:
    """Yield what is assumed about the weights of the backbones that the study uses."""
    for label in settings.select.backbones:
        for note in settings.backbones[label].notes:
            yield f"backbones.{label}: {note}"


def _selection(keys: Config, methods: PluginCatalogue[Method], grids: dict[str, Grid]) -> Selection:
    """Return the labels that the study runs, with the members of grids in the place of grids."""
    select = keys.select
    where = CONFIG / "select"
    for section in SELECTOR_KEY:
        for label in getattr(select, section):
            (where / section).check_known(label, getattr(keys, section), "no label")

    # pairs of a dataset and a partition: the named ones, or all
    crossed = product(select.datasets, select.partitions)
    names = select.scenarios or ["/".join(labels) for labels in crossed]
    for name in names:
        if name.count("/") != 1:
            message = f"must be <dataset>/<partition>, got '{name}'"
            raise (where / "scenarios").error(message, name)
        for section, label in zip(("datasets", "partitions"), name.split("/"), strict=True):
            words = f"'{name}': {section} has no label"
            (where / "scenarios").check_known(label, getattr(keys, section), words, name)

    return Selection(
        scenarios=tuple(Scenario(*name.split("/")) for name in names),
        backbones=tuple(select.backbones),
        methods=tuple(method_labels.expand(select.methods, methods, grids, where / "methods")),
        tables=tuple(select.tables),
        figures=tuple(select.figures),
    )


def _dataset(label: str, entry: Entry, written: JsonDict, selected: bool) -> Dataset:
    """Return a dataset.

    If the entry, as it was `written`, names a recipe, the dataset has the recipe's facts. If it is
    `selected`, its files are listed.
    """
    source = entry.kind
    settings = entry.keys.plain
    listed = _listing({"source": source} | settings) if selected else None
    if "recipe" not in written:
        return Dataset(label, source, settings, listed, entry.keys.expected())
    recipe = recipes.find_recipe(written["recipe"])
    expected = recipe.size(settings.get("first_per_domain"))
    domains = recipe.counts.domains
    return Dataset(label, source, settings, listed, expected, domains, recipe.all_notes())


def _listing(entry: JsonDict) -> JsonDict | None:
    """Return the number and the digest of a dataset's files; None if it reads none."""
    if "parts" in entry:
        parts = {name: _listing(part) for name, part in entry["parts"].items()}
        return {"files": sum(p["files"] for p in parts.values() if p), "sha256": digest(parts)}
    plugin = kinds.plugins_of_kind("source").get(entry["source"])
    return listing(entry, None if plugin is None else plugin.paths)


def _backbone(label: str, entry: Entry, selected: bool) -> Backbone:
    """Return a backbone; if it is selected, with the sha256 of its local weights file.

    Raises:
        InvalidKeyError: the weights file of a selected backbone is missing.
    """
    backbone = Backbone(label, entry.kind, entry.keys.plain)
    path = local_weights(backbone) if selected else None
    if path is None:
        return backbone
    if not path.is_file():
        raise (CONFIG / "backbones" / label / "weights").error(f"no such file '{path}'")
    return replace(backbone, sha256=sha256(path))


# ---- tables and figures --------------------------------------------------------------------------


def _outputs(
    settings: Settings, section: str, entries: dict[str, Entry], own: JsonDict
) -> dict[str, object]:
    """Return new values for the fields of the settings that hold the selected tables, or figures.

    A table or figure may not suit the study's runs. If the study inherits it, it is left out, with
    a note; but if the study sets it itself, or if none would be left, an error is raised.
    """
    outputs = dict[str, Output]()
    refused = list[FedLoomError]()
    for label in getattr(settings.select, section):
        try:
            outputs[label] = resolve_output(settings, section, label, entries[label])
        except FedLoomError as error:
            if section in own.get("select", {}) or label in own.get(section, {}):
                raise
            refused.append(error)
    if refused and not outputs:
        raise refused[0]
    selected = replace(settings.select, **{section: tuple(outputs)})
    left_out = (f"select.{section}: left out, since {error}" for error in refused)
    return {section: outputs, "select": selected, "notes": (*settings.notes, *left_out)}


def resolve_output(settings: Settings, section: str, label: str, entry: Entry) -> Output:
    """Return a table or figure with the labels of its runs, and what its kind reads from files.

    Raises:
        InvalidKeyError: the output does not suit the study; the error is about the output's entry.
    """
    where = CONFIG / section / label
    keys = entry.keys
    spec = keys.needs()
    select = settings.select
    known = {
        str(scenario): scenario
        for scenario in select.scenarios
        if spec.partition_key in (None, *settings.partitions[scenario.partition].settings)
    }
    if not known:
        raise where.error(f"no partition of the study has {spec.partition_key}; set it")

    # which scenarios, backbones and methods it shows
    scenarios = _select_known(keys.scenarios, known, where / "scenarios")
    backbones = _select_known(keys.backbones, select.backbones, where / "backbones")
    shown = tuple(known[name] for name in scenarios)
    output = Output(section, label, entry.kind, keys, shown, tuple(backbones))
    works_on = {}
    if spec.shows == "backbones":
        works_on = {"the figure": ("vit",)}
    elif spec.shows != "datasets":
        output = replace(output, methods=tuple(_choose_methods(settings, output, where)))
        works_on = {f"methods.{name}": settings.methods[name].families for name in output.methods}
    for (what, families), name in product(works_on.items(), backbones):
        family = settings.backbones[name].family
        if family not in families:
            raise where.error(
                f"{what} works on a {' or '.join(families)}, backbones.{name} is a {family}; show "
                "them in different tables or figures (methods, backbones)"
            )

    # what its kind requires
    for check in spec.requires:
        check(settings, output, where)
    if settings.study.evaluate_clients is not None and output.settings.get("target") is not None:
        raise (where / "target").error(
            "a sample of clients reaches it in another round; remove study.evaluate_clients, or "
            "leave it out"
        )

    # what its kind reads from the study and from a paper
    output = _complete(settings, output, where)
    published = getattr(keys, "published", None)
    if published is None:
        return output
    numbers = _published_numbers(settings, output, published, where / "published")
    return replace(output, published=numbers)


def _complete(settings: Settings, output: Output, where: KeyPath) -> Output:
    """Return the output with what its kind reads; an error becomes one about the output's entry."""
    try:
        return output.keys.complete(settings, output, where)
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


def _choose_methods(settings: Settings, output: Output, where: KeyPath) -> list[str]:
    """Return the labels of the methods that an output shows, in the order of its key `methods`.

    Raises:
        InvalidKeyError: the study runs none of them.
    """
    running = settings.select.methods
    keys = output.keys
    names = getattr(keys, "methods", None) or running
    spec = keys.needs()
    artefact = spec.artefact
    of_grids = spec.shows in ("grid", "grids")

    # the named methods that run and give what the kind shows
    chosen = list[str]()
    for label in method_labels.expand(names, settings.methods, settings.grids, where / "methods"):
        method = settings.methods[label]
        if label not in running:
            continue
        if artefact is not None and artefact not in method.artefacts:
            continue
        if of_grids and method.member is None:
            continue
        chosen.append(label)

    if not chosen:
        lack = ""
        if of_grids:
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
    settings: Settings, output: Output, published: OfPaper, where: KeyPath
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
    if output.keys.needs().shows == "datasets":
        labels = [scenario.dataset for scenario in output.scenarios]
    columns = [*map(str, output.scenarios), "average"]
    printed = {column for row in rows.values() for column in row}
    for key, ours, theirs in (("rows", labels, rows), ("columns", columns, printed)):
        for label, name in entry.get(key, {}).items():
            (where / key).check_known(label, ours, "the study has no")
            (where / key / label).check_known(name, theirs, "the paper has no")

    # a kind that shows a grid needs all rows: it finds each by the values of a combination
    values = rows
    if "rows" in entry:
        values = {name: rows[name] for name in entry["rows"].values()}
    return entry | {"citation": paper["citation"], "values": values}
