"""From config.yaml and a study to runs. Imports no torch: every job parses it again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedloom import grids, schema
from fedloom.errors import FedLoomError
from fedloom.files import sha256
from fedloom.heldout import held_out_count
from fedloom.inputs import listing, resource
from fedloom.plugins import ROOT, Method, find

CONFIG = "config key"
LABELLED = ("datasets", "partitions", "backbones", "methods", "tables", "figures")
KINDS = {
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}
# the kinds of figures and tables that are made from a method's artefacts, and from which
ARTEFACTS = {
    "soft_weights": "soft_weights",
    "prompt_tsne": "class_prompts",
    "token_tsne": "class_tokens",
    "group_counts": "group_counts",
    "clustering": "groups",
    "pool_size": "pool_sizes",
    "prompt_path": "prompt_history",
}
# of those, the figures that show all seeds; the others show the first
ALL_SEEDS = ("pool_size",)
GRIDS = ("grid", "boxes")  # the kinds of figures that show the methods of one grid

FAMILIES = {"timm": "vit", "open_clip": "clip"}  # the kind of backbone that a library gives


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping (YAML would let the last win)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # <<: what it brings in may be overridden
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int):
                line = key_node.start_mark.line + 1
                raise FedLoomError(f"{key_node.start_mark.name}: not a key (line {line}): {key}")
            if key in seen:
                line = key_node.start_mark.line + 1
                raise FedLoomError(f"{key_node.start_mark.name}: key '{key}' twice (line {line})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict:
    """One YAML file.

    Raises:
        FedLoomError: missing, not YAML, no mapping, or a key that stands twice.
    """
    try:
        with Path(path).open() as stream:
            content = yaml.load(stream, _StrictLoader)  # a SafeLoader
    except OSError as error:
        raise FedLoomError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise FedLoomError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise FedLoomError(f"{path}: expected a mapping of keys, found {type(content).__name__}")
    return content


def check_labels(paths: list[Path]) -> None:
    """A label means one thing, wherever it is defined.

    Snakemake merges a second definition *into* the first one's options, silently.

    Raises:
        FedLoomError: names the label and both files.
    """
    seen: dict[tuple[str, str], tuple[Path, Any]] = {}
    for path in paths:
        content = read(path)
        for section in LABELLED:
            labels = content.get(section)
            if not isinstance(labels, dict):
                continue  # the schema says what is wrong with it
            for label, meaning in labels.items():
                first, known = seen.setdefault((section, label), (path, meaning))
                if known != meaning:
                    raise FedLoomError(
                        f"{section}.{label} means one thing in {first} and another in {path}; "
                        "give one of them a new label"
                    )


def in_order(config: dict, first: dict) -> dict:
    """The config with the labels of `first` before those that a study adds.

    Snakemake puts a study's labels first, and a method's place decides its colour.
    """
    ordered = dict(config)
    for section in LABELLED:
        labels, known = config.get(section), first.get(section)
        if isinstance(labels, dict) and isinstance(known, dict):
            ordered[section] = {k: labels[k] for k in known if k in labels} | labels
    return ordered


def _kind(section: str, label: str, entry: dict, root: dict) -> dict:
    """The entry with defaults, checked against what its scheme, source or library allows."""
    where, key = f"{CONFIG} {section}.{label}", KINDS[section]
    known = root["$defs"][section.removesuffix("s")]
    if not isinstance(entry.get(key), str) or entry[key] not in known:
        hint = schema.suggestion(str(entry.get(key)), list(known))
        raise FedLoomError(f"{where}.{key}: no {key} '{entry.get(key)}'; {hint}")
    schema.check(entry, known[entry[key]], where, root)
    return schema.filled(entry, known[entry[key]], root)


def resolve(config: dict) -> dict:
    """The config with every default filled in and every method's options resolved.

    Raises:
        FedLoomError: one line naming the key.
    """
    root = schema.load("config")
    schema.check(config, root, CONFIG + " ")
    config = schema.filled(config, root, root)
    for section in KINDS:
        config[section] = {
            label: _kind(section, label, entry, root) for label, entry in config[section].items()
        }
    _resolve_methods(config)
    for section, labels in config["run"].items():
        if section == "methods":
            config["run"]["methods"] = _named(config, labels, f"{CONFIG} run.methods")
            continue
        for label in labels:
            if label not in config[section]:
                hint = schema.suggestion(label, list(config[section]))
                raise FedLoomError(f"{CONFIG} run.{section}: no label '{label}'; {hint}")
    for label in config["run"]["backbones"]:
        _fingerprint(config["backbones"][label], f"{CONFIG} backbones.{label}.weights")
    for label in config["run"]["datasets"]:
        found = listing(config["datasets"][label])
        if found is not None:
            config["datasets"][label]["listing"] = found
    _check_families(config)
    _check_cohorts(config)
    reported_rounds(config["study"])
    for section in ("tables", "figures"):
        for label in config["run"][section]:
            _choose_methods(config, section, label)
    return config


def _resolve_methods(config: dict) -> None:
    """Fill in what every method's label means, and put the members of grids behind all others.

    Behind them, because a label's place decides its colour. `grids` are added to the config.

    Raises:
        FedLoomError: no such plugin, option or value, or a grid that is none.
    """
    config["grids"], expanded = {}, {}
    for label, entry in config["methods"].items():
        where = f"{CONFIG} methods.{label}"
        method = find(entry["plugin"], f"{where}.plugin", "method")
        names = [wrapper["plugin"] for wrapper in entry["wrappers"]]
        if len(set(names)) < len(names):
            raise FedLoomError(f"{where}.wrappers: a wrapper stands there twice; name each once")
        for i, wrapper in enumerate(entry["wrappers"]):
            place = f"{where}.wrappers[{i}]"
            plugin = find(wrapper["plugin"], f"{place}.plugin", "wrapper")
            wrapper["options"] = plugin.options(wrapper.get("options", {}), f"{place}.options")
        entry["options"] = method.options(entry["options"], f"{where}.options")
        entry["training"] = method.training(config["study"]["training"], entry["training"])
        entry["needs"] = method.about["needs"]
        entry["family"] = method.about["family"]
        entry.setdefault("title", method.about["title"] if label == method.name else label)
        if "grid" in entry:
            expanded |= _expand(config, label, entry, method, expanded)
        else:
            entry["artefacts"] = method.artefacts(entry["options"])
    for label in config["grids"]:
        del config["methods"][label]
    config["methods"] |= expanded


def _expand(config: dict, label: str, entry: dict, method: Method, others: dict) -> dict[str, dict]:
    """The members of the grid `label` by their labels, each with its `place` in the grid.

    Args:
        others: the members of other grids, by their labels.

    Raises:
        FedLoomError: an axis that is none, values that do not fit, or a label with two meanings.
    """
    axes, where = entry.pop("grid"), f"{CONFIG} methods.{label}.grid"
    grids.check_axes(axes, entry["options"], method.about["options"], where)
    touched = list(dict.fromkeys(grids.split(axis)[0] for axis in axes))
    grid = {
        "label": label,
        "title": entry["title"],
        "axes": [[axis, values] for axis, values in axes.items()],
        "options": [[option, entry["options"][option]] for option in touched],
    }
    found: dict[str, dict] = {}
    for place, member in enumerate(grids.members(grid)):
        name = member["label"]
        if name in found or name in config["methods"] or name in others:
            what = "another combination" if name in found else "another label"
            raise FedLoomError(f"{where}: '{name}' is {what} too; leave one of them out")
        options = method.options(entry["options"] | member["options"], where)
        found[name] = entry | {
            "title": member["title"],
            "options": options,
            "artefacts": method.artefacts(options),
            "grid": {"label": label, "place": place},
        }
    config["grids"][label] = grid
    return found


def _method_names(config: dict) -> list[str]:
    """What a study may call methods: labels, and grids in place of their members."""
    return [k for k, entry in config["methods"].items() if "grid" not in entry] + [*config["grids"]]


def _named(config: dict, names: list[str], where: str) -> list[str]:
    """The labels of methods that `names` mean, each once: all members of a grid by its own.

    Raises:
        FedLoomError: no such label.
    """
    found: dict[str, None] = {}
    for name in names:
        if name in config["grids"]:
            found |= dict.fromkeys(m["label"] for m in grids.members(config["grids"][name]))
        elif name in config["methods"]:
            found[name] = None
        else:
            hint = schema.suggestion(name, _method_names(config))
            raise FedLoomError(f"{where}: no label '{name}'; {hint}")
    return list(found)


def _choose_methods(config: dict, section: str, label: str) -> None:
    """Fill in the methods that a table or figure shows, those of the study if it names none.

    Raises:
        FedLoomError: one that the study does not run, or nothing that the kind could show.
    """
    entry, where = config[section][label], f"{CONFIG} {section}.{label}"
    running = config["run"]["methods"]
    if entry["kind"] == "block_accuracy":  # of the frozen backbone, before any method
        for backbone in config["run"]["backbones"]:
            if FAMILIES[config["backbones"][backbone]["library"]] != "vit":
                raise FedLoomError(f"{where}: backbones.{backbone} is no vit; leave the figure out")
        return
    named = _named(config, entry.get("methods", running), f"{where}.methods")
    artefact, of_grid = ARTEFACTS.get(entry["kind"]), entry["kind"] in GRIDS
    entry["methods"] = [
        method
        for method in named
        if method in running
        and (artefact is None or artefact in config["methods"][method]["artefacts"])
        and (not of_grid or "grid" in config["methods"][method])
    ]
    if not entry["methods"]:
        what = f" that gives '{artefact}' with its options (method.toml)" if artefact else ""
        what = " that is of a grid (methods.<label>.grid)" if of_grid else what
        raise FedLoomError(
            f"{where}: the study runs none of its methods{what}; leave it out of run.{section}"
        )
    if entry.get("metric") == "global" and not config["study"]["global_test"]:
        raise FedLoomError(f"{where}: metric global needs study.global_test: true")
    partitions = [config["partitions"][p] for p in config["run"]["partitions"]]
    holding = any(p["held_out"] or p.get("held_out_per_domain") for p in partitions)
    if entry["kind"] == "held_out" and not holding:
        raise FedLoomError(f"{where}: no partition of the study holds clients out (held_out)")
    if "coarse" in entry:
        entry["coarse_labels"] = _coarse_labels(entry["coarse"], f"{where}.coarse")
    if of_grid:
        _check_grid(config, entry, where)
    if entry["kind"] == "shots":
        _check_shots(config, where)
    if "published" in entry:
        chosen = config["run"]
        settings = [f"{d}/{p}" for d in chosen["datasets"] for p in chosen["partitions"]]
        for key, known in (("rows", config["methods"]), ("columns", settings)):
            for name in entry["published"][key]:
                if name not in known:
                    names = _method_names(config) if key == "rows" else settings
                    hint = schema.suggestion(name, names)
                    raise FedLoomError(f"{where}.published.{key}: no '{name}' here; {hint}")
        _published(entry["published"], f"{where}.published")


def _check_grid(config: dict, entry: dict, where: str) -> None:
    """A figure of a grid is of one, whose axes the kind can show."""
    of = dict.fromkeys(config["methods"][method]["grid"]["label"] for method in entry["methods"])
    if len(of) > 1:
        raise FedLoomError(f"{where}: its methods are of the grids {', '.join(of)}; name one")
    (label,) = of
    axes = [axis for axis, _ in config["grids"][label]["axes"]]
    if entry["kind"] == "grid" and len(axes) not in (2, 3):
        raise FedLoomError(
            f"{where}: a heat map takes two axes, and a third for its panels; the grid {label} has "
            f"{len(axes)}"
        )
    lists = {option for option, position in map(grids.split, axes) if position is not None}
    if entry["kind"] == "boxes" and len(lists) != 1:
        raise FedLoomError(
            f"{where}: boxes take a grid over the entries of one list (axes option.position); the "
            f"grid {label} has {', '.join(axes)}"
        )


def _check_shots(config: dict, where: str) -> None:
    """Every partition of the study has its own number of shots."""
    known: dict[int, str] = {}
    for label in config["run"]["partitions"]:
        shots = config["partitions"][label].get("shots")
        if shots is None:
            raise FedLoomError(
                f"{where}: partitions.{label} has no shots; set them, or leave the figure out"
            )
        if shots in known:
            raise FedLoomError(
                f"{where}: partitions.{known[shots]} and partitions.{label} both have {shots} "
                "shots; run one of them"
            )
        known[shots] = label


def _coarse_labels(path: str, where: str) -> dict[str, str]:
    """The coarse label of every class.

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


def _published(entry: dict, where: str) -> None:
    """Put the paper's table in place of its number.

    Raises:
        FedLoomError: no such paper, table, row or column.
    """
    file = ROOT / "workflow/published" / f"{entry['paper']}.yaml"
    if not file.is_file():
        known = sorted(path.stem for path in file.parent.glob("*.yaml"))
        raise FedLoomError(f"{where}.paper: no '{entry['paper']}'; known: {', '.join(known)}")
    paper = read(file)
    if entry["table"] not in paper["tables"]:
        known = ", ".join(map(str, paper["tables"]))
        raise FedLoomError(f"{where}.table: no Table {entry['table']} in {file}; known: {known}")
    rows = paper["tables"][entry["table"]]["rows"]
    columns = {column for row in rows.values() for column in row}
    for key, known in (("rows", rows), ("columns", columns)):
        for label, name in entry[key].items():
            if name not in known:
                hint = schema.suggestion(name, list(known))
                raise FedLoomError(f"{where}.{key}.{label}: no '{name}' in the paper; {hint}")
    entry["citation"] = paper["citation"]
    entry["values"] = {name: rows[name] for name in entry["rows"].values()}


def local_weights(backbone: dict) -> Path | None:
    """The file of weights that an entry of the config's `backbones` names; None: a hub has them."""
    weights = backbone["weights"]
    if weights == "hub" or (backbone["library"] == "open_clip" and not _is_file_name(weights)):
        return None
    return resource(weights)


def _is_file_name(weights: str) -> bool:
    """Whether it is a file, of any kind, rather than one of open_clip's tags."""
    return "/" in weights or "." in weights


def _fingerprint(backbone: dict, where: str) -> None:
    """Add the sha256 of local weights, which may be too large for Snakemake's own checksums."""
    path = local_weights(backbone)
    if path is None:
        return
    if not path.is_file():
        raise FedLoomError(f"{where}: no such file '{path}'")
    backbone["sha256"] = sha256(path)


def _check_families(config: dict) -> None:
    """Every method of the study works on every backbone of it."""
    for label in config["run"]["methods"]:
        for backbone in config["run"]["backbones"]:
            family = FAMILIES[config["backbones"][backbone]["library"]]
            wanted = config["methods"][label]["family"]
            if wanted != family:
                raise FedLoomError(
                    f"{CONFIG} methods.{label} works on a {wanted}, backbones.{backbone} is a "
                    f"{family}; put them into different studies"
                )


def _check_cohorts(config: dict) -> None:
    for label in config["run"]["partitions"]:
        partition = config["partitions"][label]
        if partition["scheme"] == "domain":  # the number of its clients is the dataset's matter
            _check_held_out(partition, f"{CONFIG} partitions.{label}")
            continue
        training = partition["clients"] - held_out_count(partition["clients"], partition)
        if config["study"]["clients_per_round"] > training:
            raise FedLoomError(
                f"{CONFIG} study.clients_per_round: {config['study']['clients_per_round']} is more "
                f"than the {training} participating clients of partitions.{label}"
            )


def _check_held_out(partition: dict, where: str) -> None:
    """Of every domain, a client is left to train."""
    count = partition["held_out_per_domain"]
    if count and partition["held_out"]:
        raise FedLoomError(f"{where}: held_out and held_out_per_domain; set one of them")
    if count >= partition["clients_per_domain"]:
        raise FedLoomError(
            f"{where}.held_out_per_domain: {count} of {partition['clients_per_domain']} clients "
            "per domain leave none to train"
        )


@dataclass(frozen=True, order=True)
class Run:
    """One chain of rounds, by its labels."""

    dataset: str
    partition: str
    backbone: str
    method: str
    seed: int

    @property
    def path(self) -> str:
        return f"{self.dataset}/{self.partition}/{self.backbone}/{self.method}/seed{self.seed}"


def runs(config: dict) -> list[Run]:
    """Every run of the study, in the config's order."""
    chosen = config["run"]
    return [
        Run(dataset, partition, backbone, method, seed)
        for dataset in chosen["datasets"]
        for partition in chosen["partitions"]
        for backbone in chosen["backbones"]
        for method in chosen["methods"]
        for seed in config["study"]["seeds"]
    ]


def run_spec(config: dict, run: Run) -> dict:
    """All that bears on a run's numbers, and nothing else: its digest binds its checkpoints.

    The number of rounds belongs to it only where the schedule depends on it, so that a study can
    be extended.
    """
    study, method = config["study"], config["methods"][run.method]
    spec = {
        "run": run.path,
        "seed": run.seed,
        "backbone": config["backbones"][run.backbone],
        "method": {key: method[key] for key in ("plugin", "options", "training", "wrappers")},
        "clients_per_round": study["clients_per_round"],
        "rounds_per_job": study["rounds_per_job"],
    }
    if method["training"].get("schedule") == "cosine":  # what is not trained has none
        spec["rounds"] = study["rounds"]
    return spec


def chunk_ends(study: dict) -> list[int]:
    """The rounds at which a job ends: multiples of rounds_per_job, and the last round."""
    step, rounds = study["rounds_per_job"], study["rounds"]
    return [*range(step, rounds, step), rounds]


def evaluated_rounds(study: dict) -> list[int]:
    """The rounds after which all clients are evaluated.

    A job's last round is always one of them, also when a later job follows: else extending a
    study would change what an earlier job was asked for, and run it again.
    """
    return sorted({*_wanted_rounds(study), *chunk_ends(study)})


def _wanted_rounds(study: dict) -> list[int]:
    """The rounds that study.evaluate_rounds asks for, and the last.

    Raises:
        FedLoomError: a round that is listed but never trained.
    """
    wanted, rounds = study["evaluate_rounds"], study["rounds"]
    chosen = range(wanted, rounds + 1, wanted) if isinstance(wanted, int) else wanted
    if chosen and max(chosen) > rounds:
        raise FedLoomError(
            f"{CONFIG} study.evaluate_rounds: round {max(chosen)}, but study.rounds is {rounds}"
        )
    return sorted({*chosen, rounds})


def reported_rounds(study: dict) -> list[int]:
    """The evaluated rounds that the tables average.

    Raises:
        FedLoomError: fewer rounds are evaluated than are to be averaged.
    """
    evaluated, wanted = _wanted_rounds(study), study["report_round"]
    count = 1 if wanted == "last" else wanted["mean_of_last"]
    if count > len(evaluated):
        raise FedLoomError(
            f"{CONFIG} study.report_round: the mean of {count} rounds, but only {len(evaluated)} "
            "are evaluated (study.evaluate_rounds)"
        )
    return evaluated[-count:]
