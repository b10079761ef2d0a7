"""Shrink a study, so that all of it runs once in minutes: `fedloom run STUDY --smoke`.

The shrunk study is a whole config. It has the same classes, partitions, methods, options, wrappers,
tables and figures. Its images are made up, its backbones are small, and it trains two rounds.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from math import ceil
from typing import NamedTuple

from fedloom.common.json_types import JsonDict
from fedloom.config.grids import combinations, combine_axes
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
    """The numbers to which a study is shrunk."""

    rounds: int
    seeds: int
    # training options: the most that a study, a partition or a method may have
    training: dict[str, int]
    # about the number of training images of each data set
    images: int
    # backbones keep their size and precision, with random weights; images keep their size
    real: bool
    remark: str


# all of a study in minutes on two cores
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
# the axes of a grid, with the values of each
Axes = dict[str, list]
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
    select = settings.select
    grids = _shrunk_grids(config["partitions"], select.partitions)
    grids |= _shrunk_grids(config.get("methods", {}), select.methods)
    dropped = {*_lost_members(config["partitions"], grids)}
    dropped |= {*_lost_members(config.get("methods", {}), grids)}

    datasets = _datasets(config, settings, scale)
    partitions = {}
    for label, entry in config["partitions"].items():
        partitions[label] = _partition(label, entry, settings, datasets, scale, grids.get(label))
    methods = {}
    for label, entry in config.get("methods", {}).items():
        methods[label] = _method(entry, scale, grids.get(label))

    # seeds, without which tables have no deviations
    methods_left = [label for label in select.methods if label not in dropped]
    scenarios_left = [each for each in select.scenarios if each.partition not in dropped]
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
        "methods": methods,
        "tables": tables,
        "figures": figures,
        "select": {
            "datasets": list(select.datasets),
            "partitions": sorted({each.partition for each in scenarios_left}),
            "scenarios": [str(each) for each in scenarios_left],
            "backbones": list(select.backbones),
            "methods": methods_left,
            "tables": list(select.tables),
            "figures": list(select.figures),
        },
    }


def _ends(axes: Mapping[str, list]) -> dict[str, list]:
    """Return the first and the last value of each axis of a grid."""
    return {axis: values[:1] + values[1:][-1:] for axis, values in axes.items()}


def _shrunk_grids(entries: Mapping[str, JsonDict], selected: Iterable[str]) -> dict[str, Axes]:
    """Return the axes of each grid that a study runs: the ends of the values that it selects."""
    names = {*selected}
    grids = dict[str, Axes]()
    for label, entry in entries.items():
        if not entry.get("grid"):
            continue
        chosen = [at for name, at in combinations(label, entry["grid"]) if name in names]
        if not chosen:
            continue

        used = {}
        for axis, values in entry["grid"].items():
            used[axis] = [value for value in values if any(at[axis] == value for at in chosen)]
        grids[label] = _ends(used)

        # of single members, perhaps none is at the ends of all axes
        if not any(name in names for name, _ in combinations(label, grids[label])):
            grids[label] = {axis: [value] for axis, value in chosen[0].items()}
    return grids


def _lost_members(entries: Mapping[str, JsonDict], grids: Mapping[str, Axes]) -> set[str]:
    """Return the labels of the members of grids that the shrunk grids lack."""
    lost = set[str]()
    for label, axes in grids.items():
        if label in entries:
            kept = {name for name, _ in combinations(label, axes)}
            lost |= {name for name, _ in combinations(label, entries[label]["grid"])} - kept
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
        needed = _needed_domains(settings, label)
        shrunk[label] = shrink_dataset(label, entry, dataset, names, needed, side, scale.images)
    return shrunk


def _needed_domains(settings: Settings, dataset: str) -> list[str] | None:
    """Return the domains that partitions of a dataset name; None if none divides it by domains."""
    needed = list[str]()
    is_divided = False
    for scenario in settings.select.scenarios:
        partition = settings.partitions[scenario.partition]
        arrivals = partition.settings.get("arrivals", {})
        if scenario.dataset != dataset:
            continue
        if partition.scheme == "domain" or arrivals.get("of") == "domains":
            is_divided = True
        needed += partition.settings.get("held_out_domains", [])
    return needed if is_divided else None


def _backbone(entry: JsonDict, scale: Scale) -> JsonDict:
    """Return a small backbone of the same library, or the same one with random weights."""
    if not scale.real:
        return dict(SMALL_BACKBONES[entry["library"]])
    if entry["name"] in SHIPPED_BACKBONES:
        return entry | {"weights": str(resource(entry["weights"]))}
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
        "seeds": _first_seeds(study, seeds),
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


def _first_seeds(study: Study, count: int) -> list[int]:
    """Return the first seeds of a study; if it has fewer, larger numbers are added."""
    seeds = study.seeds[:count]
    while len(seeds) < count:
        following = max(study.seeds + seeds) + 1
        # the trials have a seed of their own
        if study.tune is not None and study.tune.seed == following:
            following += 1
        seeds = [*seeds, following]
    return seeds


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
    label: str,
    entry: JsonDict,
    settings: Settings,
    datasets: JsonDict,
    scale: Scale,
    grid: Axes | None,
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
    if grid is not None:
        shrunk["grid"] = grid
    if "clients" in entry:
        shrunk["clients"] = _fewer_clients(entry, divided)
    if "clients_per_domain" in entry:
        shrunk["clients_per_domain"] = _fewer_clients_of_domain(entry)
    if entry.get("min_images"):
        shrunk["min_images"] = min(entry["min_images"], LEAST_IMAGES)
    counts = [_count_training(shrunk | at, divided) for at in combine_axes(shrunk.get("grid", {}))]
    trained = min((count for count in counts if count is not None), default=None)

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


def _method(entry: JsonDict, scale: Scale, grid: Axes | None) -> JsonDict:
    """Return a shrunk method: fewer rounds, less training, and of a grid the ends of its axes."""
    shrunk = dict(entry)
    if grid is not None:
        shrunk["grid"] = grid
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
