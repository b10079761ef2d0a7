"""From the merged config to settings: checked, and every default filled in. Imports no torch."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import SchemaError, checked
from fedloom.config import data_plugins, recipes
from fedloom.config.backbones import LIBRARIES
from fedloom.config.file_fingerprint import listing
from fedloom.config.kinds import Catalogue, Entry, Listed, check_entry
from fedloom.config.method_labels import check_parts, expand, implied, resolve_methods
from fedloom.config.outputs import published_paper, resolve_output
from fedloom.config.protocols import methods_of
from fedloom.config.reading import CONFIG, locate
from fedloom.config.settings import (
    Backbone,
    Dataset,
    Grid,
    Method,
    Partition,
    Scenario,
    Selection,
    Settings,
)
from fedloom.config.study import Config, Protocol, Select
from fedloom.config.study_checks import check_study
from fedloom.config.tuning import with_trials
from fedloom.config.weights import local_weights
from fedloom.hooks.manifest import Found

Entries = dict[str, dict[str, Entry]]  # by section and label


def resolve(config: dict[str, Any], kinds: Catalogue, files: Iterable[Path] = ()) -> Settings:
    """Check the merged config, and return what its labels stand for.

    Args:
        kinds: of data sets, partitions, tables and figures; those of backbones are known here.
        files: where the config was read from, so that an error can name file and line.

    Raises:
        FedLoomError: one line that names the key.
    """
    try:
        keys = checked(Config, config, CONFIG + " ")
        protocols = {label: _protocol(label, entry) for label, entry in keys.partitions.items()}
        entries = _entries(keys, kinds)
    except SchemaError as error:
        raise FedLoomError(f"{error}{locate(files, error.keys)}") from None
    methods, grids = resolve_methods(
        implied(keys.select.methods, keys.methods) | keys.methods, keys.study.training
    )
    selected = _selection(keys.select, entries, methods, grids)
    paper, seed = keys.study.paper, keys.study.fixed_seeds.partition
    settings = Settings(
        study=keys.study,
        datasets={
            label: _dataset(label, entry, keys.datasets[label], label in selected.datasets)
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
        citation=paper and published_paper(paper, f"{CONFIG} study")["citation"],
    )
    check_parts(methods_of(settings, selected.methods), settings.study)
    for section in ("tables", "figures"):
        for label in getattr(selected, section):
            output = resolve_output(settings, section, label, entries[section][label])
            getattr(settings, section)[label] = output
    check_study(settings)
    tune = keys.study.tune
    return settings if tune is None else with_trials(settings, tune)


def _entries(keys: Config, kinds: Catalogue) -> Entries:
    """Return the entries of all sections, each checked against the keys of its kind."""
    entries: Entries = {
        "datasets": {
            label: recipes.check_dataset(label, entry, kinds["datasets"])
            for label, entry in keys.datasets.items()
        }
    }
    rooms = {**kinds, "backbones": Listed(LIBRARIES)}
    for section in ("partitions", "backbones", "tables", "figures"):
        entries[section] = {
            label: check_entry(section, label, entry, rooms[section], f"{CONFIG} {section}.{label}")
            for label, entry in getattr(keys, section).items()
        }
    return entries


def _protocol(label: str, entry: dict[str, Any]) -> Protocol:
    """Take the protocol out of an entry of `partitions`; the keys of its scheme are left."""
    path = ["partitions", label, "protocol"]
    return checked(Protocol, entry.pop("protocol", {}), f"{CONFIG} {'.'.join(path)}", path)


def _selection(
    select: Select, entries: Entries, methods: Found[Method], grids: dict[str, Grid]
) -> Selection:
    """Return the labels that the study runs, grids expanded.

    Raises:
        FedLoomError: a label that is not there.
    """
    where = f"{CONFIG} select"
    for section, known in entries.items():
        for label in getattr(select, section):
            if label not in known:
                hint = suggestion(label, list(known))
                raise FedLoomError(f"{where}.{section}: no label '{label}'; {hint}")
    crossed = product(select.datasets, select.partitions)
    scenarios = [Scenario(*each) for each in crossed]
    if select.scenarios is not None:
        scenarios = [_scenario(name, entries, f"{where}.scenarios") for name in select.scenarios]
    return Selection(
        scenarios=tuple(scenarios),
        backbones=tuple(select.backbones),
        methods=tuple(expand(select.methods, methods, grids, f"{where}.methods")),
        tables=tuple(select.tables),
        figures=tuple(select.figures),
    )


def _scenario(name: str, entries: Entries, where: str) -> Scenario:
    """Return the scenario that "dataset/partition" names.

    Raises:
        FedLoomError: it is no such pair, or one of the labels is not there.
    """
    labels = name.split("/")
    if len(labels) != 2:
        raise FedLoomError(f"{where}: must be <dataset>/<partition>, got '{name}'")
    for section, label in zip(("datasets", "partitions"), labels, strict=True):
        if label not in entries[section]:
            hint = suggestion(label, list(entries[section]))
            raise FedLoomError(f"{where}: '{name}': no label '{label}' of {section}; {hint}")
    return Scenario(*labels)


def _dataset(label: str, entry: Entry, written: dict[str, Any], selected: bool) -> Dataset:
    """Return a dataset with what its recipe says of it; the files of a selected one are listed.

    Args:
        written: the entry before its recipe was resolved.
    """
    source, keys = entry
    dataset = Dataset(label, source, keys.plain, expected=keys.expected())
    if selected:
        dataset = replace(dataset, listing=_listing({"source": source} | dataset.settings))
    if "recipe" not in written:
        return dataset
    recipe = recipes.find(written["recipe"])
    return replace(
        dataset,
        expected=recipe.size(dataset.settings),
        domains=recipe.counts.get("domains"),
        notes=recipe.all_notes(),
    )


def _listing(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return number and digest of the files that a dataset is made of (config.file_fingerprint)."""
    if "parts" in entry:
        parts = {name: _listing(part) for name, part in entry["parts"].items()}
        return {"files": sum(p["files"] for p in parts.values() if p), "sha256": digest(parts)}
    plugin = data_plugins.discover("source").get(entry["source"])
    return listing(entry, None if plugin is None else plugin.paths)


def _backbone(label: str, entry: Entry, selected: bool) -> Backbone:
    """Return a backbone; a selected one with the sha256 of local weights.

    Weights may be too large for Snakemake's own checksums.
    """
    backbone = Backbone(label, entry.kind, entry.keys.plain)
    path = local_weights(backbone) if selected else None
    if path is None:
        return backbone
    if not path.is_file():
        raise FedLoomError(f"{CONFIG} backbones.{label}.weights: no such file '{path}'")
    return replace(backbone, sha256=sha256(path))
