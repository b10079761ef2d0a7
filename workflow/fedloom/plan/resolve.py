"""From the merged config to settings: checked, and every default filled in. Imports no torch."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.common import schema
from fedloom.common.errors import FedLoomError
from fedloom.common.held_out import held_out_count
from fedloom.common.receipts import digest, sha256
from fedloom.plan import data_plugins, recipes
from fedloom.plan.listing import listing
from fedloom.plan.methods import check_families, check_parts, expand, implied, resolve_methods
from fedloom.plan.outputs import resolve_output
from fedloom.plan.reading import CONFIG, locate
from fedloom.plan.runs import reported_rounds
from fedloom.plan.settings import (
    Backbone,
    Dataset,
    Output,
    Partition,
    Selection,
    Settings,
    Study,
)
from fedloom.plan.tuning import with_trials
from fedloom.plan.weights import local_weights

KINDS = {  # the key that names what an entry is checked against
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}
OUTPUT_KEYS = ("kind", "title", "methods", "published")  # the rest is the kind's own


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
    select["methods"] = expand(select["methods"], methods, grids, f"{CONFIG} select.methods")
    for section, labels in select.items():
        for label in labels if section != "methods" else ():
            if label not in entries[section]:
                hint = schema.suggestion(label, list(entries[section]))
                raise FedLoomError(f"{CONFIG} select.{section}: no label '{label}'; {hint}")
    settings = Settings(
        study=_study(config["study"]),
        datasets=_datasets(entries["datasets"], select["datasets"]),
        partitions={
            label: Partition(label, entry["scheme"], _without(entry, "scheme"))
            for label, entry in entries["partitions"].items()
        },
        backbones=_backbones(entries["backbones"], select["backbones"]),
        methods=methods,
        grids=grids,
        tables={label: _output("tables", label, e) for label, e in entries["tables"].items()},
        figures={label: _output("figures", label, e) for label, e in entries["figures"].items()},
        select=Selection(**{section: tuple(labels) for section, labels in select.items()}),
    )
    check_families(
        [methods[label] for label in select["methods"]],
        [settings.backbones[label] for label in select["backbones"]],
    )
    check_parts([methods[label] for label in select["methods"]], settings.study)
    _check_cohorts(settings)
    reported_rounds(settings.study)
    for section in ("tables", "figures"):
        outputs = getattr(settings, section)
        for label in select[section]:
            wanted = entries[section][label].get("methods")
            outputs[label] = resolve_output(settings, outputs[label], wanted)
    tune = config["study"].get("tune")
    return settings if tune is None else with_trials(settings, tune)


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
        hint = schema.suggestion(str(entry.get(key)), list(kinds))
        line = f"{where}.{key}: no {key} '{entry.get(key)}'; {hint}"
        raise schema.SchemaError(line, [section, label, key])
    schema.check(entry, kinds[entry[key]], where, root, keys=[section, label])
    entry = schema.filled(entry, kinds[entry[key]], root)
    return _with_parts(label, entry, root) if "parts" in entry else entry


def _with_parts(label: str, entry: dict, root: dict) -> dict:
    """Return a dataset of several with its parts checked, as entries of their own."""
    parts = {}
    for name, part in entry["parts"].items():
        if isinstance(part.get("recipe"), str):
            part = {"root": f"{entry['root']}/{Path(part['recipe']).stem}"} | part
        parts[name] = _checked_entry("datasets", f"{label}.parts.{name}", part, root)
    return _without(entry, "root") | {"parts": parts}


def _without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def _study(entry: dict[str, Any]) -> Study:
    keys = ("name", "rounds", "clients_per_round", "rounds_per_job", "evaluate_every")
    return Study(
        **{key: entry[key] for key in (*keys, "confusion", "precision", "stacked")},
        gradient_checkpointing=entry["gradient_checkpointing"],
        seeds=tuple(entry["seeds"]),
        last_evaluations=entry["report"]["last_evaluations"],
        global_test=entry["global_test"],
        training=entry["training"],
    )


def _datasets(entries: dict[str, dict], selected: list[str]) -> dict[str, Dataset]:
    """Return the datasets by label; the files of the selected ones are listed."""
    return {
        label: Dataset(
            label,
            entry["source"],
            _without(entry, "source"),
            _listing(entry) if label in selected else None,
        )
        for label, entry in entries.items()
    }


def _listing(entry: dict[str, Any]) -> dict[str, Any] | None:
    """Return number and digest of the files that a dataset is made of, see fedloom.plan.listing."""
    if "parts" in entry:
        parts = {name: _listing(part) for name, part in entry["parts"].items()}
        return {"files": sum(p["files"] for p in parts.values() if p), "sha256": digest(parts)}
    plugin = data_plugins.discover("source").get(entry["source"])
    return listing(entry, None if plugin is None else plugin.paths)


def _backbones(entries: dict[str, dict], selected: list[str]) -> dict[str, Backbone]:
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


def _check_cohorts(settings: Settings) -> None:
    """Check that enough clients participate for a cohort, where the config can tell.

    Raises:
        FedLoomError: names the partition.
    """
    for label in settings.select.partitions:
        partition = settings.partitions[label]
        clients = partition.settings.get("clients")
        if clients is None:  # of a partition by domain, they follow from the dataset
            _check_domains(partition.settings, f"{CONFIG} partitions.{label}")
            continue
        training = clients - held_out_count(clients, partition.settings)
        if settings.study.clients_per_round > training:
            raise FedLoomError(
                f"{CONFIG} study.clients_per_round: {settings.study.clients_per_round} is more "
                f"than the {training} participating clients of partitions.{label}"
            )


def _check_domains(partition: dict, where: str) -> None:
    """Check that a domain is divided in one way, and that a client of each is left to train."""
    if "alpha" in partition and "dominant_share" in partition:
        raise FedLoomError(f"{where}: alpha and dominant_share; divide a domain by one of them")
    count = partition.get("held_out_per_domain", 0)
    if count and partition["held_out"]:
        raise FedLoomError(f"{where}: held_out and held_out_per_domain; set one of them")
    if count and count >= partition["clients_per_domain"]:
        raise FedLoomError(
            f"{where}.held_out_per_domain: {count} of {partition['clients_per_domain']} clients "
            "per domain leave none to train"
        )
