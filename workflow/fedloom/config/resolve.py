"""From the merged config to settings: checked, and every default filled in. Imports no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fedloom.common import schema
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import digest, sha256
from fedloom.config import data_plugins, recipes
from fedloom.config.file_fingerprint import listing
from fedloom.config.method_labels import check_parts, expand, implied, resolve_methods
from fedloom.config.outputs import published_paper, resolve_output
from fedloom.config.protocols import methods_of, protocol_of
from fedloom.config.reading import CONFIG, locate
from fedloom.config.settings import (
    About,
    Backbone,
    Dataset,
    FixedSeeds,
    Grid,
    Method,
    Output,
    Partition,
    Scenario,
    Selection,
    Settings,
    Study,
)
from fedloom.config.study_checks import check_study
from fedloom.config.tuning import with_trials
from fedloom.config.weights import local_weights
from fedloom.hooks.manifest import Found

# keys of a dataset of several that its parts cannot have
OF_ALL_PARTS = {"image_size", "resize", "skip_unreadable"}
KINDS = {  # the key that names what an entry is checked against
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}
# of a table or figure; the rest is the kind's own
OUTPUT_KEYS = ("kind", "title", "scenarios", "backbones", "methods", "published")


def resolve(config: dict[str, Any], files: Iterable[Path] = ()) -> Settings:
    """Check the merged config and return it as frozen dataclasses.

    Args:
        files: where the config was read from, so that an error can name file and line.

    Raises:
        FedLoomError: one line that names the key.
    """
    root = schema.load("config")
    try:
        schema.check(config, root, CONFIG + " ")
        config = schema.filled(config, root, root)
        entries = {
            section: {
                label: _checked_entry(section, label, entry, root)
                for label, entry in config[section].items()
            }
            for section in KINDS
        }
    except schema.SchemaError as error:
        raise FedLoomError(f"{error}{locate(files, error.keys)}") from None
    select = config["select"]
    methods, grids = resolve_methods(
        implied(select["methods"], config["methods"]) | config["methods"],
        config["study"]["training"],
    )
    selected = _selection(select, entries, methods, grids)
    settings = Settings(
        about=_about(config["study"]),
        study=_study(config["study"]),
        datasets=_datasets(entries["datasets"], config["datasets"], selected.datasets),
        partitions={
            label: _partition(label, entry, config["study"]["fixed"].get("partition"))
            for label, entry in entries["partitions"].items()
        },
        protocols={
            label: protocol_of(entry.get("protocol"))
            for label, entry in entries["partitions"].items()
        },
        backbones=_backbones(entries["backbones"], selected.backbones),
        methods=methods,
        grids=grids,
        tables={label: _output("tables", label, e) for label, e in entries["tables"].items()},
        figures={label: _output("figures", label, e) for label, e in entries["figures"].items()},
        select=selected,
    )
    check_parts(methods_of(settings, selected.methods), settings.study)
    for section in ("tables", "figures"):
        outputs = getattr(settings, section)
        for label in getattr(selected, section):
            outputs[label] = resolve_output(settings, outputs[label], entries[section][label])
    check_study(settings)
    tune = config["study"].get("tune")
    return settings if tune is None else with_trials(settings, tune)


def _selection(
    select: dict[str, Any],
    entries: dict[str, dict],
    methods: Found[Method],
    grids: dict[str, Grid],
) -> Selection:
    """Return the labels that the study runs, grids expanded.

    Raises:
        FedLoomError: a label that is not there.
    """
    where = f"{CONFIG} select"
    for section in ("datasets", "partitions", "backbones", "tables", "figures"):
        for label in select[section]:
            if label not in entries[section]:
                hint = schema.suggestion(label, list(entries[section]))
                raise FedLoomError(f"{where}.{section}: no label '{label}'; {hint}")
    crossed = product(select["datasets"], select["partitions"])
    scenarios = [Scenario(*each) for each in crossed]
    if "scenarios" in select:
        scenarios = [_scenario(name, entries, f"{where}.scenarios") for name in select["scenarios"]]
    return Selection(
        scenarios=tuple(scenarios),
        backbones=tuple(select["backbones"]),
        methods=tuple(expand(select["methods"], methods, grids, f"{where}.methods")),
        tables=tuple(select["tables"]),
        figures=tuple(select["figures"]),
    )


def _scenario(name: str, entries: dict[str, dict], where: str) -> Scenario:
    """Return the scenario that "dataset/partition" names.

    Raises:
        FedLoomError: it is no such pair, or one of the labels is not there.
    """
    labels = name.split("/")
    if len(labels) != 2:
        raise FedLoomError(f"{where}: '{name}' is no <dataset>/<partition>")
    for section, label in zip(("datasets", "partitions"), labels, strict=True):
        if label not in entries[section]:
            hint = schema.suggestion(label, list(entries[section]))
            raise FedLoomError(f"{where}: '{name}': no label '{label}' of {section}; {hint}")
    return Scenario(*labels)


def dataset_entry(label: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the config's `datasets`, checked, with its recipe resolved and defaults.

    Raises:
        FedLoomError: one line that names the key.
    """
    return _checked_entry("datasets", label, entry, schema.load("config"))


def _checked_entry(section: str, label: str, entry: dict, root: dict) -> dict:
    """Return the entry with defaults, checked against what its scheme, source or kind allows.

    A dataset's recipe is resolved into a source and its keys.
    """
    where, key = f"{CONFIG} {section}.{label}", KINDS[section]
    kinds = data_plugins.entries(section)
    if section == "datasets" and "recipe" in entry:
        try:
            entry = recipes.expanded(entry)
        except FedLoomError as error:
            raise schema.SchemaError(f"{where}: {error}", [section, label, "recipe"]) from None
    if not isinstance(entry.get(key), str) or entry[key] not in kinds:
        broken = data_plugins.broken().get(str(entry.get(key)))
        if broken is not None:
            raise schema.SchemaError(f"{where}.{key}: {broken}", [section, label, key])
        hint = schema.suggestion(str(entry.get(key)), list(kinds))
        line = f"{where}.{key}: no {key} '{entry.get(key)}'; {hint}"
        raise schema.SchemaError(line, [section, label, key])
    schema.check(entry, kinds[entry[key]], where, root, keys=[section, label])
    entry = schema.filled(entry, kinds[entry[key]], root)
    return _with_parts(label, entry, root) if "parts" in entry else entry


def _with_parts(label: str, entry: dict, root: dict) -> dict:
    """Return a dataset of several with its parts checked, as entries of their own.

    Raises:
        FedLoomError: a part is wrong, or has a key that the images of all parts have alike.
    """
    parts = {}
    for name, part in entry["parts"].items():
        where = f"{CONFIG} datasets.{label}"
        for key in sorted(OF_ALL_PARTS & part.keys()):
            line = f"{where}.parts.{name}.{key}: all parts have it alike; set {where}.{key}"
            raise schema.SchemaError(line, ["datasets", label, "parts", name, key])
        if part.get("source") == "several":  # whose image_size is required
            part = part | {"image_size": entry["image_size"]}
        if isinstance(part.get("recipe"), str):
            try:
                folder = recipes.folder_of(recipes.find(part["recipe"]))
            except FedLoomError as error:
                keys = ["datasets", label, "parts", name, "recipe"]
                raise schema.SchemaError(f"{where}.parts.{name}: {error}", keys) from None
            part = {"root": f"{entry['root']}/{folder}"} | part
        parts[name] = _checked_entry("datasets", f"{label}.parts.{name}", part, root)
    return _without(entry, "root") | {"parts": parts}


def _partition(label: str, entry: dict[str, Any], seed: int | None) -> Partition:
    """Return a partition; one without a seed of its own has that of the study, if it fixes one."""
    fixed = {} if seed is None else {"seed": seed}
    return Partition(label, entry["scheme"], fixed | _without(entry, "scheme", "protocol"))


def _about(entry: dict[str, Any]) -> About:
    """Return what the study says of itself.

    Raises:
        FedLoomError: there is no such paper.
    """
    paper = entry.get("paper")
    return About(
        paper=paper,
        citation=None if paper is None else published_paper(paper, f"{CONFIG} study")["citation"],
        shows=tuple(entry.get("shows", ())),
        deviations=entry["deviations"],
        choices=entry["choices"],
    )


def _without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def _study(entry: dict[str, Any]) -> Study:
    keys = ("name", "rounds", "clients_per_round", "rounds_per_job", "evaluate_every")
    return Study(
        **{key: entry[key] for key in (*keys, "confusion", "precision", "stacked")},
        gradient_checkpointing=entry["gradient_checkpointing"],
        seeds=tuple(entry["seeds"]),
        fixed=FixedSeeds(**_without(entry["fixed"], "partition")),
        evaluate_clients=entry.get("evaluate_clients"),
        last_evaluations=entry["report"]["last_evaluations"],
        worst_of_evaluations=entry["report"].get("worst_of_evaluations"),
        global_test=entry["global_test"],
        training=entry["training"],
    )


def _datasets(
    entries: dict[str, dict], given: dict[str, dict], selected: Sequence[str]
) -> dict[str, Dataset]:
    """Return the datasets by label; the files of the selected ones are listed.

    Args:
        given: the entries before their recipes were resolved.
    """
    datasets = {}
    for label, entry in entries.items():
        dataset = Dataset(label, entry["source"], _without(entry, "source"))
        if label in selected:
            dataset = replace(dataset, listing=_listing(entry))
        if "recipe" in given[label]:
            recipe = recipes.find(given[label]["recipe"])
            dataset = replace(
                dataset,
                expected=recipe.size(entry),
                domains=recipe.counts.get("domains"),
                notes=recipe.all_notes(),
            )
        datasets[label] = dataset
    return datasets


def _listing(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return number and digest of the files that a dataset is made of (config.file_fingerprint)."""
    if "parts" in entry:
        parts = {name: _listing(part) for name, part in entry["parts"].items()}
        return {"files": sum(p["files"] for p in parts.values() if p), "sha256": digest(parts)}
    plugin = data_plugins.discover("source").get(entry["source"])
    return listing(entry, None if plugin is None else plugin.paths)


def _backbones(entries: dict[str, dict], selected: Sequence[str]) -> dict[str, Backbone]:
    """Return the backbones by label, the selected ones with the sha256 of local weights.

    Weights may be too large for Snakemake's own checksums.
    """
    backbones = {}
    for label, entry in entries.items():
        backbone = Backbone(label, entry["library"], _without(entry, "library"))
        path = local_weights(backbone) if label in selected else None
        if path is not None:
            if not path.is_file():
                line = f"{CONFIG} backbones.{label}.weights: no such file '{path}'"
                raise FedLoomError(line)
            backbone = replace(backbone, sha256=sha256(path))
        backbones[label] = backbone
    return backbones


def _output(section: str, label: str, entry: dict[str, Any]) -> Output:
    return Output(
        section=section,
        label=label,
        kind=entry["kind"],
        title=entry.get("title"),
        settings=_without(entry, *OUTPUT_KEYS),
        published=entry.get("published"),
    )
