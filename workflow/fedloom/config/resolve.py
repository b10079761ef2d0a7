"""Turn the merged config into settings: check it, and fill in every default, without torch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import validate
from fedloom.config import kind_plugins, method_labels, recipes
from fedloom.config.backbones import TOKENIZER_FILES, tokenizer_digest
from fedloom.config.datasets import listing
from fedloom.config.grids import with_partitions
from fedloom.config.kinds import SELECTOR_KEY, Entry, check_entry
from fedloom.config.protocols import check_parts, check_runs, fit_inherited_keys, notes_on
from fedloom.config.reading import read_paper
from fedloom.config.resolve_outputs import with_outputs
from fedloom.config.settings import (
    BackboneSettings,
    Dataset,
    Grid,
    Method,
    Partition,
    Scenario,
    Selection,
    Settings,
    local_weights,
)
from fedloom.config.study import Config, Protocol
from fedloom.hooks.discovery import PluginCatalogue
from fedloom.machine.install import resource


def resolve_with(config: JsonDict, own: JsonDict | None = None) -> Settings:
    """Check and resolve the merged config.

    `own` holds the keys that the study sets itself; it inherits all other keys. By default, it sets
    all keys itself.

    Raises:
        InvalidKeyError: a key is wrong, or does not suit the study.
    """
    if own is None:
        own = config
    settings, entries = _without_outputs(config)

    # the study's keys, with inherited ones lowered to fit
    inherited = settings.study
    study = fit_inherited_keys(settings, own)
    notes = (*notes_on(inherited, study), *_notes_on_backbones(settings))
    settings = replace(settings, study=study, notes=notes)

    # check what can only be checked with several labels together
    check_parts(settings, settings.select.methods)
    for section in ("tables", "figures"):
        settings = with_outputs(settings, section, entries[section], own)
    check_runs(settings)

    # the trials that choose options
    if study.tune is not None:
        settings = method_labels.with_trials(settings, study.tune)
        labels = list[str]()
        for trials in settings.trials.values():
            labels += [trial.label for trial in trials]
        check_parts(settings, labels)
    return settings


def _without_outputs(merged: JsonDict) -> tuple[Settings, dict[str, dict[str, Entry]]]:
    """Return settings without tables and figures, and the checked entries of all kinds.

    Tables and figures are resolved later, since they depend on the study's keys.
    """
    # the labels that the study runs
    config = with_partitions(validate(Config, merged, CONFIG))
    protocols = _protocols(config)
    methods, grids = method_labels.resolve_methods(
        config.select.methods, config.methods, config.study.training
    )
    selected = _selection(config, methods, grids)

    # the entries of all kinds; this comes late, since it imports the kinds' modules
    entries = _entries(config)

    # the datasets, and the backbones
    used = _used_datasets(config, selected, entries["partitions"])
    datasets = {
        label: _dataset(label, entry, config.datasets[label], label in used)
        for label, entry in entries["datasets"].items()
    }
    backbones = {
        label: _backbone(label, entry, label in selected.backbones)
        for label, entry in entries["backbones"].items()
    }

    # the partitions, with the seed that the study fixes for all of them
    seed = config.study.fixed_seeds.partition
    partitions = {}
    for label, (scheme, values) in entries["partitions"].items():
        given = values.plain
        if seed is not None:
            given = {"seed": seed, **given}
        partitions[label] = Partition(label, scheme, given)

    # the paper that the study is of
    citation = None
    if config.study.paper:
        citation = read_paper(config.study.paper, CONFIG / "study" / "paper")["citation"]

    settings = Settings(
        study=config.study,
        datasets=datasets,
        partitions=partitions,
        protocols=protocols,
        backbones=backbones,
        methods=methods,
        grids=grids,
        tables={},
        figures={},
        select=selected,
        citation=citation,
    )
    return settings, entries


def _protocols(config: Config) -> dict[str, Protocol]:
    """Take the key `protocol` out of the entries of partitions, and return the protocols by label.

    All other keys of an entry are a scheme's.
    """
    protocols = {}
    for label, entry in config.partitions.items():
        where = CONFIG / "partitions" / label / "protocol"
        protocols[label] = validate(Protocol, entry.pop("protocol", {}), where)
    return protocols


def _entries(config: Config) -> dict[str, dict[str, Entry]]:
    """Check the entries of all kinds, and return them by section and label."""
    entries = dict[str, dict[str, Entry]]()
    for section in SELECTOR_KEY:
        check = partial(check_entry, section)
        if section == "datasets":
            check = recipes.check_dataset
        written = getattr(config, section)
        entries[section] = {label: check(label, entry) for label, entry in written.items()}
    return entries


def _used_datasets(config: Config, selected: Selection, partitions: dict[str, Entry]) -> set[str]:
    """Return the labels of the datasets that the study trains on or only tests on."""
    used = {*selected.datasets}
    for label in selected.partitions:
        for name in partitions[label].values.plain.get("transfer_to", ()):
            where = CONFIG / "partitions" / label / "transfer_to"
            where.check_known(name, config.datasets, "datasets have no label")
            used.add(name)
    return used


def _notes_on_backbones(settings: Settings) -> Iterator[str]:
    """Yield what is assumed about the weights of the backbones that the study uses."""
    for label in settings.select.backbones:
        for note in settings.backbones[label].notes:
            yield f"backbones.{label}: {note}"


def _selection(
    config: Config, methods: PluginCatalogue[Method], grids: dict[str, Grid]
) -> Selection:
    """Return the labels that the study runs, with the members of grids in the place of grids."""
    select = config.select
    where = CONFIG / "select"
    for section in SELECTOR_KEY:
        for label in getattr(select, section):
            (where / section).check_known(label, getattr(config, section), "no label")

    # pairs of a dataset and a partition: the named ones, or all
    crossed = product(select.datasets, select.partitions)
    names = select.scenarios or ["/".join(labels) for labels in crossed]
    for name in names:
        if name.count("/") != 1:
            message = f"must be <dataset>/<partition>, got '{name}'"
            raise (where / "scenarios").error(message, name)
        for section, label in zip(("datasets", "partitions"), name.split("/"), strict=True):
            words = f"'{name}': {section} has no label"
            (where / "scenarios").check_known(label, getattr(config, section), words, name)

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
    settings = entry.values.plain
    listed = _listing({"source": source} | settings) if selected else None
    if "recipe" not in written:
        return Dataset(label, source, settings, listed, entry.values.expected())
    recipe = recipes.find_recipe(written["recipe"])
    expected = recipe.size(settings.get("first_per_domain"))
    domains = recipe.counts.domains
    return Dataset(label, source, settings, listed, expected, domains, recipe.all_notes())


def _listing(entry: JsonDict) -> JsonDict | None:
    """Return the number and the digest of a dataset's files; None if it reads none."""
    if "parts" in entry:
        parts = {name: _listing(part) for name, part in entry["parts"].items()}
        return {"files": sum(p["files"] for p in parts.values() if p), "sha256": digest(parts)}
    plugin = kind_plugins.plugins_of_type("source").get(entry["source"])
    return listing(entry, None if plugin is None else plugin.paths)


def _backbone(label: str, entry: Entry, selected: bool) -> BackboneSettings:
    """Return a backbone; if it is selected, with the sha256 of its local files.

    Raises:
        InvalidKeyError: a file of a selected backbone is missing.
    """
    settings = entry.values.plain
    if selected and "tokenizer" in settings:
        settings = settings | {"tokenizer_sha256": _digest_of_tokenizer(label, settings)}
    if selected:
        settings = settings | _digest_of_files(label, entry.kind, settings)
    backbone = BackboneSettings(label, entry.kind, settings)
    path = local_weights(backbone) if selected else None
    if path is None:
        return backbone
    if not path.is_file():
        raise (CONFIG / "backbones" / label / "weights").error(
            f"the file '{path}' does not exist; correct the path"
        )
    return replace(backbone, sha256=sha256(path))


def _digest_of_files(label: str, library: str, settings: JsonDict) -> JsonDict:
    """Return the key of a digest of the files that a plugin's options name, if they name any.

    Raises:
        InvalidKeyError: a file is missing.
    """
    plugin = kind_plugins.plugins_of_type("backbone").get(library)
    if plugin is None:
        return {}
    try:
        found = plugin.digest_of_files(settings)
    except FedLoomError as error:
        raise (CONFIG / "backbones" / label).error(str(error)) from None
    if found is None:
        return {}
    return {kind_plugins.FILES_DIGEST: found}


def _digest_of_tokenizer(label: str, settings: JsonDict) -> str:
    """Return a digest of the files of a backbone's local tokenizer.

    Raises:
        InvalidKeyError: a file is missing.
    """
    folder = resource(settings["tokenizer"])
    files = [folder / name for name in TOKENIZER_FILES]
    for file in files:
        if not file.is_file():
            raise (CONFIG / "backbones" / label / "tokenizer").error(
                f"must be a folder with {' and '.join(TOKENIZER_FILES)}, got '{folder}' without "
                f"{file.name}; correct the path, or put the file there"
            )
    return tokenizer_digest(files)
