"""Shrink a study, so that all of it runs once in a minute: `fedloom run STUDY --smoke`.

The shrunk study is a whole config. It has the same classes, partitions, methods, options, wrappers,
tables and figures. Its images are made up, its backbones are small, and it trains two rounds.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from math import ceil
from typing import Any, NamedTuple

from fedloom.common.json_types import JsonDict
from fedloom.config.grids import combinations
from fedloom.config.reading import read
from fedloom.config.settings import MICRO as SHIPPED_BACKBONES
from fedloom.config.settings import Settings
from fedloom.config.shrink.made_up_data import count_classes, count_domains, shrink_dataset
from fedloom.config.study import Study
from fedloom.machine.install import resource

# partitions of at most this number of clients keep all of them; of others, a tenth stays
FEW_CLIENTS = 20
LEAST_CLIENTS = 10
# the most images that a scheme may demand of every client
LEAST_IMAGES = 2
# a study that would still have more runs than this gets one seed
MOST_RUNS = 200
# side of small images, in pixels
SMALL_SIDE = 32
# the backbones in the place of a study's own, by library
SMALL_BACKBONES: dict[str, JsonDict] = {
    "timm": {
        "library": "timm",
        "name": "micro_vit",
        "weights": "workflow/resources/micro_vit.safetensors",
    },
    "open_clip": {
        "library": "open_clip",
        "name": "micro_clip",
        "weights": "workflow/resources/micro_clip.safetensors",
    },
    "torchvision": {"library": "torchvision", "name": "resnet20", "weights": "none"},
}


class Scale(NamedTuple):
    """What is left of a study."""

    rounds: int
    seeds: int
    # training options: the most that a study, a partition or a method may have
    training: dict[str, int]
    # about the number of training images of each data set
    images: int
    # backbones keep their size and precision, with random weights; images keep their size
    real: bool
    remark: str


# all of a study in a minute on two cores
MICRO = Scale(
    rounds=2,
    seeds=2,
    training={"epochs": 1, "batch_size": 8, "local_steps": 2},
    images=240,
    real=False,
    remark="Smoke run: made-up images, small backbones and two rounds, so that the numbers mean "
    "nothing.",
)
# a step of each method at its real size
REAL = Scale(
    rounds=1,
    seeds=1,
    training={"local_steps": 1},
    images=640,
    real=True,
    remark="Smoke run: made-up images, random weights and one step a client, so that the numbers "
    "mean nothing.",
)
# the keys of `study` that are taken over as they are
KEPT_KEYS = (
    "name",
    "fixed_seeds",
    "global_test",
    "confusion",
    "stacked",
    "gradient_checkpointing",
    "compile",
)


def shrink(config: JsonDict, settings: Settings, scale: Scale = MICRO) -> JsonDict:
    """Return the config of a shrunk study.

    Args:
        config: the merged config of the study.
        settings: its settings, of the same config.
        scale: what is left of it.

    Raises:
        InvalidKeyError: the classes of a data set are unknown.
    """
    config = deepcopy(config)
    datasets = _datasets(config, settings, scale)
    methods = config.get("methods", {})
    partitions = {}
    for label, entry in config["partitions"].items():
        partitions[label] = _partition(label, entry, settings, datasets, scale)

    # members of grids that the shrunk study lacks
    dropped = {*_lost_members(config["partitions"]), *_lost_members(methods)}

    # seeds, without which tables have no deviations
    methods_left = [label for label in settings.select.methods if label not in dropped]
    scenarios_left = [each for each in settings.select.scenarios if each.partition not in dropped]
    seeds = scale.seeds
    if len(methods_left) * len(scenarios_left) * seeds > MOST_RUNS:
        seeds = 1

    tables = _outputs(config["tables"], settings.select.tables, dropped)
    for table in tables.values():
        if table["kind"] == "claims":
            table["verdicts"] = False
    figures = _outputs(config["figures"], settings.select.figures, dropped)
    backbones = {}
    for label in settings.select.backbones:
        backbones[label] = _backbone(config["backbones"][label], scale)

    return {
        "inherit": False,
        "study": _study(settings.study, scale, seeds),
        "datasets": datasets,
        "partitions": partitions,
        "backbones": backbones,
        "methods": {label: _method(entry, scale) for label, entry in methods.items()},
        "tables": tables,
        "figures": figures,
        "select": _select(config["select"], settings, dropped),
    }


def _ends(axes: Mapping[str, list]) -> dict[str, list]:
    """Return the first and the last value of each axis of a grid."""
    return {axis: values[:1] + values[1:][-1:] for axis, values in axes.items()}


def _lost_members(entries: Mapping[str, JsonDict]) -> set[str]:
    """Return the labels of the members of grids that are not at the ends of all axes."""
    lost = set[str]()
    for label, entry in entries.items():
        if entry.get("grid"):
            kept = {name for name, _ in combinations(label, _ends(entry["grid"]))}
            lost |= {name for name, _ in combinations(label, entry["grid"])} - kept
    return lost


def _datasets(config: JsonDict, settings: Settings, scale: Scale) -> JsonDict:
    """Return the datasets of a study; those that it trains or tests on are shrunk."""
    used = {*settings.select.datasets}
    for label in settings.select.partitions:
        used |= {*settings.partitions[label].settings.get("transfer_to", ())}

    # files of superclasses name the classes of a data set that has no other names
    names = None
    for output in (*settings.tables.values(), *settings.figures.values()):
        path = output.settings.get("superclasses")
        if path:
            names = [*read(resource(path))]

    # labels that the study does not run stay as they are, since tables may name them
    shrunk = dict(config["datasets"])
    for label, entry in config["datasets"].items():
        if label not in used:
            continue
        dataset = settings.datasets[label]
        side = SMALL_SIDE
        if scale.real:
            side = dataset.settings.get("image_size", SMALL_SIDE)
        shrunk[label] = shrink_dataset(label, entry, dataset, names, side, scale.images)
    return shrunk


def _backbone(entry: JsonDict, scale: Scale) -> JsonDict:
    """Return a small backbone of the same library, or the same one with random weights."""
    if not scale.real:
        return dict(SMALL_BACKBONES[entry["library"]])
    if entry["name"] in SHIPPED_BACKBONES:
        return entry
    return entry | {"weights": "none"}


def _study(study: Study, scale: Scale, seeds: int) -> JsonDict:
    """Return the shrunk keys of `study`, with a number of seeds."""
    given = study.model_dump(mode="json", exclude_unset=True)
    shrunk = {key: given[key] for key in KEPT_KEYS if key in given}
    if scale.real and "precision" in given:
        shrunk["precision"] = given["precision"]

    shrunk |= {
        "remark": scale.remark,
        "rounds": scale.rounds,
        "rounds_per_job": scale.rounds,
        "evaluate_every": 1,
        "clients_per_round": study.clients_per_round,
        "seeds": _first_seeds(study.seeds, seeds),
        "report": _report(study.report.model_dump(exclude_none=True), scale),
        "training": study.training.given | _limits(study.training.given, scale),
    }
    # trials would only repeat the one step
    if study.tune is not None and not scale.real:
        shrunk["tune"] = _tune(study.tune.model_dump(mode="json", exclude_unset=True))
    return shrunk


def _limits(training: JsonDict, scale: Scale) -> JsonDict:
    """Return the training options that every method of a shrunk study has."""
    limits = {}
    for key, most in scale.training.items():
        # local steps would replace the epochs
        if key != "local_steps" or scale.real or training.get(key) is not None:
            limits[key] = min(training.get(key) or most, most)
    return limits


def _tune(tune: JsonDict) -> JsonDict:
    """Return the keys of `tune` with two trials of one round, at the ends of the first axis."""
    values = dict[str, list]()
    trials = 1
    for axis, choices in tune["values"].items():
        values[axis] = choices[:1]
        if trials == 1:
            values[axis] = _ends({axis: choices})[axis]
            trials = len(values[axis])

    shrunk = tune | {"trials": trials, "rounds": 1, "values": values}
    if "per_method" in tune:
        shrunk["per_method"] = {label: _ends(axes) for label, axes in tune["per_method"].items()}
    return shrunk


def _first_seeds(seeds: list[int], count: int) -> list[int]:
    """Return the first seeds; if a study has fewer, the numbers after its last one are added."""
    more = range(seeds[-1] + 1, seeds[-1] + count)
    return [*seeds, *more][:count]


def _report(report: JsonDict, scale: Scale) -> JsonDict:
    """Return the keys of `report` with at most as many evaluations as there are."""
    return {key: min(count, scale.rounds) for key, count in report.items()}


def _training(training: JsonDict, scale: Scale) -> JsonDict:
    """Return training options of a partition or a method, none above its limit."""
    shrunk = dict(training)
    for key, most in scale.training.items():
        if shrunk.get(key) is not None:
            shrunk[key] = min(shrunk[key], most)
    return shrunk


def _partition(
    label: str, entry: JsonDict, settings: Settings, datasets: JsonDict, scale: Scale
) -> JsonDict:
    """Return a shrunk partition: a tenth of the clients, but enough for its scheme.

    A partition that the study does not run stays as it is, since tables may name it.
    """
    # the datasets that the partition divides
    divided = [
        datasets[scenario.dataset]
        for scenario in settings.select.scenarios
        if scenario.partition == label or scenario.partition.startswith(f"{label}.")
    ]
    if not divided:
        return entry

    # fewer members, and fewer clients
    shrunk = dict(entry)
    if entry.get("grid"):
        shrunk["grid"] = _ends(entry["grid"])
    if "clients" in entry:
        shrunk["clients"] = _fewer_clients(entry, divided)
    if "clients_per_domain" in entry:
        shrunk["clients_per_domain"] = _fewer_clients_of_domain(entry)
    if entry.get("min_images"):
        shrunk["min_images"] = min(entry["min_images"], LEAST_IMAGES)
    trained = _count_training(shrunk, divided)

    # rounds in which parts arrive
    protocol = dict(entry.get("protocol", {}))
    rounds = scale.rounds
    if entry.get("arrivals"):
        arrivals = entry["arrivals"]
        at = list(range(2, 2 + len(arrivals["at"])))
        shrunk["arrivals"] = arrivals | {"at": at}
        rounds = at[-1]

    # the protocol
    sampled = protocol.get("clients_per_round", settings.study.clients_per_round)
    shrunk["protocol"] = {
        "rounds": rounds,
        "evaluate_every": 1,
        "clients_per_round": min(sampled, trained or sampled),
    }
    if "report" in protocol:
        shrunk["protocol"]["report"] = _report(protocol["report"], scale)
    if "training" in protocol:
        shrunk["protocol"]["training"] = _training(protocol["training"], scale)
    return shrunk


def _fewer_clients(entry: JsonDict, divided: list[JsonDict]) -> int:
    """Return the number of clients of a shrunk partition whose scheme states it."""
    clients = entry["clients"]
    if clients <= FEW_CLIENTS:
        return clients
    fewer = max(LEAST_CLIENTS, ceil(clients / 10))

    # every class must be some client's
    if "classes_per_client" in entry:
        for dataset in divided:
            classes = count_classes(dataset) or 0
            fewer = max(fewer, ceil(classes / entry["classes_per_client"]))

    # one client or more is held out
    held_out = entry.get("held_out", 0)
    while held_out and round(fewer * held_out) < 1:
        fewer += 1
    return min(fewer, clients)


def _fewer_clients_of_domain(entry: JsonDict) -> int:
    """Return the number of clients of each domain of a shrunk partition."""
    clients = entry["clients_per_domain"]
    return min(clients, max(2, ceil(clients / 10), entry.get("held_out_per_domain", 0) + 1))


def _count_training(entry: JsonDict, divided: list[JsonDict]) -> int | None:
    """Return how many clients of a shrunk partition train; None if its keys do not say.

    Of several datasets, the one with the fewest counts.
    """
    if "clients" in entry:
        return entry["clients"] - round(entry["clients"] * entry.get("held_out", 0))
    if entry["scheme"] != "domain":
        return None

    counts = []
    for dataset in divided:
        domains = count_domains(dataset)
        clients = entry.get("clients_per_domain", 1)
        held_out = entry.get("held_out_per_domain", 0) * domains
        held_out += round(domains * clients * entry.get("held_out", 0))
        held_out += len(entry.get("held_out_domains", ())) * clients
        counts.append(domains * clients - held_out)
    return min(counts)


def _method(entry: JsonDict, scale: Scale) -> JsonDict:
    """Return a shrunk method: fewer rounds, less training, and of a grid the ends of its axes."""
    shrunk = dict(entry)
    if entry.get("grid"):
        shrunk["grid"] = _ends(entry["grid"])
    if entry.get("rounds"):
        shrunk["rounds"] = min(entry["rounds"], scale.rounds)
    if entry.get("training"):
        shrunk["training"] = _training(entry["training"], scale)
    return shrunk


def _outputs(entries: JsonDict, chosen: Iterable[str], dropped: set[str]) -> JsonDict:
    """Return the chosen tables or figures, without published numbers and dropped labels."""
    shrunk = {}
    for label in chosen:
        entry = {key: value for key, value in entries[label].items() if key != "published"}
        for key in ("scenarios", "methods"):
            if key in entry:
                entry[key] = _without(entry[key], dropped)

        # the shrunk study runs in another folder
        if entry.get("superclasses"):
            entry["superclasses"] = str(resource(entry["superclasses"]))
        shrunk[label] = entry
    return shrunk


def _without(names: list[str], dropped: set[str]) -> list[str]:
    """Return labels or scenarios without dropped ones."""
    return [name for name in names if name.rpartition("/")[2] not in dropped]


def _select(select: JsonDict, settings: Settings, dropped: set[str]) -> JsonDict:
    """Return the shrunk key `select`."""
    shrunk: dict[str, Any] = {
        key: _without(value, dropped) if isinstance(value, list) else value
        for key, value in select.items()
    }
    shrunk["datasets"] = list(settings.select.datasets)
    shrunk["backbones"] = list(settings.select.backbones)
    shrunk["tables"] = list(settings.select.tables)
    shrunk["figures"] = list(settings.select.figures)
    if shrunk.get("scenarios"):
        shrunk["partitions"] = sorted({name.rpartition("/")[2] for name in shrunk["scenarios"]})
    return shrunk
