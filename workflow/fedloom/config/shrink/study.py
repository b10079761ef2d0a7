"""Shrink a study, so that all of it runs once in minutes: `fedloom run STUDY --smoke`.

The shrunk study is a whole config. It has the same classes, partitions, methods, options, wrappers,
tables and figures. Its images are made up, its backbones are small, and it trains two rounds.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from itertools import product

from fedloom.common.json_types import JsonDict
from fedloom.config.grids import split_axis
from fedloom.config.kind_plugins import path_keys
from fedloom.config.settings import LIBRARIES, OutputEntry, Scenario, Settings, family_of
from fedloom.config.settings import MICRO as SHIPPED_BACKBONES
from fedloom.config.shrink.datasets import enlarge_datasets, shrink_datasets
from fedloom.config.shrink.grids import Axes, lost_members, shrink_grids
from fedloom.config.shrink.partitions import shrink_partitions
from fedloom.config.shrink.scale import MICRO, Scale, limit_training
from fedloom.config.shrink.study_keys import shrink_study_keys, shrink_tune
from fedloom.hooks.manifest import find_method
from fedloom.machine.install import resource

# The most runs of two rounds and two seeds, trials included. Each needs one to six CPU seconds.
# This is no limit: a study with more of them has one seed, and then one round.
MOST_RUNS = 30
# scenario, backbone and method of a run, whatever its seed
ShownRun = tuple[Scenario, str, str]
# the backbones in the place of a study's own, by the family's own library
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

    # of grids, only the ends are left
    written_methods = config.get("methods", {})
    bare_methods = _entries_of_bare_methods(settings, written_methods)
    partition_grids = shrink_grids(config["partitions"], select.partitions)
    method_grids = shrink_grids(written_methods, select.methods)
    dropped = lost_members(config["partitions"], partition_grids)
    dropped |= lost_members(written_methods, method_grids)
    scenarios = [each for each in select.scenarios if each.partition not in dropped]
    methods = [label for label in select.methods if label not in dropped]

    # the seeds that --only names get no others beside them
    if "seeds" in settings.narrowing:
        scale = scale._replace(seeds=min(scale.seeds, len(settings.study.seeds)))
    shown = _shown_runs(settings, scenarios, methods)
    scale = _scale_of_runs(scale, len(shown), _count_trials(settings, shown, scale))

    # tables and figures name methods by their labels, or by those of grids
    members = [settings.methods[label].member for label in methods]
    left = {
        "scenarios": [str(each) for each in scenarios],
        "backbones": list(select.backbones),
        "methods": [*methods, *(member.grid for member in members if member)],
    }

    datasets = shrink_datasets(config, settings, scale)
    partitions = shrink_partitions(config["partitions"], scenarios, settings, datasets, scale)
    datasets = enlarge_datasets(datasets, partitions, config, settings, scenarios)
    return {
        "inherit": False,
        "study": shrink_study_keys(settings.study, scale),
        "datasets": datasets,
        "partitions": partitions,
        "backbones": {
            label: _shrink_backbone(config["backbones"][label], scale) for label in select.backbones
        },
        "methods": {
            label: _shrink_method(entry, scale, method_grids.get(label))
            for label, entry in (bare_methods | written_methods).items()
        },
        "tables": _shrink_outputs(config["tables"], settings.tables, left),
        "figures": _shrink_outputs(config["figures"], settings.figures, left),
        "select": {
            "datasets": list(select.datasets),
            "partitions": sorted({each.partition for each in scenarios}),
            "scenarios": left["scenarios"],
            "backbones": left["backbones"],
            "methods": methods,
            "tables": list(select.tables),
            "figures": list(select.figures),
        },
    }


def _shown_runs(
    settings: Settings, scenarios: Collection[Scenario], methods: Collection[str]
) -> list[ShownRun]:
    """List the runs of a seed that the study's tables and figures show.

    Only runs of these scenarios and methods count.
    """
    shown = set[ShownRun]()
    for output in (*settings.tables.values(), *settings.figures.values()):
        shown |= {*product(output.scenarios, output.backbones, output.methods)}
    return [run for run in shown if run[0] in scenarios and run[2] in methods]


def _count_trials(settings: Settings, shown: Collection[ShownRun], scale: Scale) -> int:
    """Return the number of trials that come before the runs that a shrunk study shows."""
    tune = shrink_tune(settings.study, scale)
    if tune is None:
        return 0
    return tune["trials"] * sum(method in settings.trials for _, _, method in shown)


def _scale_of_runs(scale: Scale, runs_of_a_seed: int, trials: int) -> Scale:
    """Return the scale of a study with this number of runs of each seed, and of trials.

    Where there are many, it does without deviations over seeds, and then without a second round.
    """
    if runs_of_a_seed * scale.seeds + trials > MOST_RUNS:
        scale = scale._replace(seeds=1)
    if runs_of_a_seed + trials > MOST_RUNS:
        scale = scale._replace(rounds=1)
    return scale


def _shrink_backbone(entry: JsonDict, scale: Scale) -> JsonDict:
    """Return a small backbone of the same library, or the same one with random weights."""
    if not scale.real:
        return dict(SMALL_BACKBONES[LIBRARIES[family_of(entry["library"])]])
    if entry["name"] in SHIPPED_BACKBONES:
        return entry | {"weights": str(resource(entry["weights"]))}

    # the shrunk study runs in a folder of its own
    shrunk = entry | {"weights": "none"}
    for key in path_keys(entry["library"]):
        if entry.get(key):
            shrunk[key] = str(resource(entry[key]))
    return shrunk


def _entries_of_bare_methods(settings: Settings, written: Collection[str]) -> JsonDict:
    """Return an entry for each label that is the name of a plugin and has none in the config.

    Only plugins that have other options in smoke runs need one.
    """
    entries = {}
    for label in settings.select.methods:
        is_bare = label not in written and settings.methods[label].member is None
        if is_bare and _smoke_options(label, {}):
            entries[label] = {"plugin": label}
    return entries


def _smoke_options(plugin: str, written: JsonDict) -> JsonDict:
    """Return values that options of a plugin have in smoke runs, in place of the written ones.

    The plugin states them. If another option holds how many epochs clients train before a test, it
    is at most one.
    """
    manifest = find_method(plugin)
    option = manifest.cost.personalize_epochs
    if isinstance(option, int):
        return manifest.smoke_options

    defaults = {option: manifest.option_schemas[option]["default"]}
    epochs = (defaults | written)[option]
    return {option: min(epochs, 1)} | manifest.smoke_options


def _shrink_method(entry: JsonDict, scale: Scale, grid: Axes | None) -> JsonDict:
    """Return a shrunk method: fewer rounds, less training, and of a grid the ends of its axes.

    Options have the values of smoke runs, but for the axes of a grid.
    """
    shrunk = dict(entry)
    if grid is not None:
        shrunk["grid"] = grid
    varied = {split_axis(axis)[0] for axis in grid or {}}
    smoke_options = _smoke_options(entry["plugin"], entry.get("options", {}))
    kept = {option: value for option, value in smoke_options.items() if option not in varied}
    if kept:
        shrunk["options"] = entry.get("options", {}) | kept
    if entry.get("rounds"):
        shrunk["rounds"] = min(entry["rounds"], scale.rounds)
    if entry.get("training"):
        shrunk["training"] = limit_training(entry["training"], scale)
    return shrunk


def _shrink_outputs(
    written: JsonDict, outputs: Mapping[str, OutputEntry], left: Mapping[str, Collection[str]]
) -> JsonDict:
    """Return the tables or figures of a shrunk study, without published numbers.

    Args:
        written: all tables or all figures of the config.
        outputs: those that the study makes.
        left: what is left of the labels that an output may name, by key, such as "methods".
    """
    shrunk = {}
    for label, output in outputs.items():
        entry = {key: value for key, value in written[label].items() if key != "published"}
        for key, labels in left.items():
            # in the checked entry, the members of a grid of partitions stand in its place
            names = getattr(output.entry, key, None)
            if names is None:
                continue
            entry[key] = [name for name in names if name in labels]

            # what names only lost members of grids shows all that is left
            if not entry[key]:
                del entry[key]
        if output.kind == "claims":
            entry["verdicts"] = False

        # the shrunk study runs in another folder
        for key in output.entry.path_keys():
            if entry.get(key) is not None:
                entry[key] = str(resource(entry[key]))
        shrunk[label] = entry
    return shrunk
