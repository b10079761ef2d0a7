"""Resolve the labels of methods: plugins with their options, grids and trials of `study.tune`.

A trial is a method with some options set, tested on a share of the clients' training images.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from math import lcm

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG, KeyPath
from fedloom.config import grids
from fedloom.config.settings import VALIDATION, Grid, Method, Partition, Settings, Trial, Wrapper
from fedloom.config.study import Axes, MethodEntry, Tune
from fedloom.hooks.discovery import PluginCatalogue
from fedloom.hooks.manifest import MethodManifest, discover_methods, find_method
from fedloom.hooks.training_options import Training
from fedloom.hooks.wrapper_rules import refused_wrappers

TUNE = CONFIG / "study" / "tune"


def resolve_methods(
    labels: list[str], entries: dict[str, MethodEntry], training: Training
) -> tuple[PluginCatalogue[Method], dict[str, Grid]]:
    """Return the methods by label, including the members of grids, and the grids by label.

    If the plugin of a label is broken, looking the label up raises the plugin's error.

    Args:
        labels: the selected labels; a label that is a plugin's name needs no entry.
        entries: the entries of `methods` in the config.
        training: the training options of the study.

    Raises:
        InvalidKeyError: an entry is wrong.
    """
    plugins = discover_methods()
    all_entries = {**_entries_of_plugins(labels, entries), **entries}

    methods = dict[str, Method]()
    errors = dict[str, FedLoomError]()
    all_grids = dict[str, Grid]()
    for label, entry in all_entries.items():
        where = CONFIG / "methods" / label

        # if a plugin is broken, keep its error: it is raised when the label is looked up
        names = [entry.plugin, *(wrapper.plugin for wrapper in entry.wrappers)]
        broken = [plugins.errors[name] for name in names if name in plugins.errors]
        if broken:
            errors[label] = broken[0]
            continue

        for axis in entry.axis_titles:
            (where / "axis_titles").check_known(axis, entry.grid or (), "the grid has no axis")

        # the method, or the members of its grid
        added = [_resolve_method(label, entry, training, where)]
        if entry.grid is not None:
            grid = _make_grid(added[0], entry.grid, where / "grid")
            grid = replace(grid, axis_titles=tuple(entry.axis_titles.items()))
            all_grids[label] = grid
            added = _grid_members(added[0], grid, where)
        for method in added:
            _check_wrappers(method, where / "wrappers")
            taken = method.label != label and method.label in all_entries
            if method.label in methods or taken:
                raise (where / "grid").error(
                    f"'{method.label}' is another label too; leave one of them out"
                )
            methods[method.label] = method
    return PluginCatalogue(methods, errors), all_grids


def _entries_of_plugins(
    labels: list[str], entries: dict[str, MethodEntry]
) -> dict[str, MethodEntry]:
    """Return an entry for each selected label that has none, and that is the name of a plugin.

    The plugin must be a method's, or broken: then it may be a method's.
    """
    plugins = discover_methods()
    found = {}
    for name in labels:
        if name in entries:
            continue
        is_method = name in plugins and plugins[name].kind == "method"
        if is_method or name in plugins.errors:
            found[name] = MethodEntry(plugin=name)
    return found


def _resolve_method(label: str, entry: MethodEntry, training: Training, where: KeyPath) -> Method:
    """Return the method of a label, after checks; `training` has the study's training options."""
    names = [wrapper.plugin for wrapper in entry.wrappers]
    if len(set(names)) < len(names) or entry.plugin in names:
        raise (where / "wrappers").error("the list has a wrapper twice; name each once")

    plugin = find_method(entry.plugin, where / "plugin", "method")
    options = plugin.complete_options(entry.options, where / "options")
    wrappers = list[Wrapper]()
    for position, given in enumerate(entry.wrappers):
        place = where / "wrappers" / position
        wrapper = find_method(given.plugin, place / "plugin", "wrapper")
        wrapper_options = wrapper.complete_options(given.options, place / "options")
        wrappers.append(Wrapper(wrapper.name, wrapper_options))

    # an entry without a title gets the plugin's title if its label is the plugin's name
    title = entry.title
    if not title:
        title = label
        if label == plugin.name:
            title = plugin.title

    return Method(
        label=label,
        plugin=plugin.name,
        title=title,
        options=options,
        training=plugin.merge_training(training.given, entry.training.given),
        wrappers=tuple(wrappers),
        families=plugin.families,
        needs=plugin.needs,
        artefacts=_artefacts(plugin, options, wrappers),
        look=plugin.look.plain,
        own_training=entry.training.given,
        rounds=entry.rounds,
    )


def _grid_members(method: Method, grid: Grid, where: KeyPath) -> list[Method]:
    """Return a method for each combination of a grid's options."""
    members = []
    for label, title, member in grids.members(grid):
        varied = _varied(method, label, title, member.options, where)
        members.append(replace(varied, member=member))
    return members


def _artefacts(
    plugin: MethodManifest, options: dict, wrappers: Iterable[Wrapper]
) -> tuple[str, ...]:
    """Return the names of the artefacts that a method and its wrappers give with these options."""
    audits = (find_method(w.plugin).artefacts_with(w.options) for w in wrappers)
    return (*plugin.all_artefacts(options), *chain.from_iterable(audits))


def _check_wrappers(method: Method, where: KeyPath) -> None:
    """Raise an InvalidKeyError if the method, with its options, cannot have its wrappers."""
    wrappers = [find_method(w.plugin).with_defaults(w.options) for w in method.wrappers]
    reason = refused_wrappers(find_method(method.plugin), method.options, wrappers)
    if reason is not None:
        raise where.error(reason)

    # only the first wrapper that knows a table computes it
    for name, count in Counter(method.artefacts).items():
        if count > 1:
            raise where.error(
                f"must have other tables than the method and each other, got '{name}' twice; "
                "leave one of the wrappers out"
            )


def _make_grid(method: Method, axes: dict[str, list], where: KeyPath) -> Grid:
    """Return the grid that varies a method along axes; raise an InvalidKeyError if one is wrong."""
    every = dict.fromkeys(Training.model_fields) | method.training
    options = method.options | {f"{grids.TRAINING}{name}": v for name, v in every.items()}
    grids.check_axes(axes, options, find_method(method.plugin).option_schemas, where)
    touched = dict.fromkeys(grids.split_axis(axis)[0] for axis in axes)
    values = tuple((option, options[option]) for option in touched)
    return Grid(method.label, method.title, tuple(axes.items()), values)


def _varied(method: Method, label: str, title: str, options: JsonDict, where: KeyPath) -> Method:
    """Return a method with another label and title, and with other values of some options.

    `options` may include training options.
    """
    plugin = find_method(method.plugin)
    own, swept = grids.split_training_options(options)
    # this only checks them; the method's other options are checked already
    plugin.complete_options(own, where)
    checked = method.options | own
    return replace(
        method,
        label=label,
        title=title,
        options=checked,
        training=method.training | swept,
        own_training=method.own_training | swept,
        artefacts=_artefacts(plugin, checked, method.wrappers),
    )


def expand(
    names: Iterable[str],
    methods: PluginCatalogue[Method],
    all_grids: dict[str, Grid],
    where: KeyPath,
) -> list[str]:
    """Return the labels that `names` stand for: the label of a grid stands for all its members.

    Raises:
        InvalidKeyError: a name is unknown; the error is about the list of names at `where`.
        FedLoomError: the plugin of a name is broken.
    """
    labels: dict[str, None] = {}
    plugins = {name for name, plugin in discover_methods().items() if plugin.kind == "method"}
    for name in names:
        if name in methods.errors:
            raise methods.errors[name]

        # a label that the study does not have
        if name not in methods and name in plugins:
            raise where.error(
                f"the study does not run '{name}'; add it to select.methods, or leave this out of "
                "select.tables and select.figures",
                name,
            )
        if name not in methods and name not in all_grids:
            near = suggestion(name, {*methods, *all_grids, *plugins})
            raise where.error(f"no label '{name}'; {near}", name)

        # a grid's label stands for its members
        if name in all_grids:
            labels.update(dict.fromkeys(label for label, *_ in grids.members(all_grids[name])))
        else:
            labels[name] = None
    return list(labels)


# ---- trials --------------------------------------------------------------------------------------


def with_trials(settings: Settings, tune: Tune) -> Settings:
    """Return the settings with the trials that `study.tune` asks for, and the trials' partitions.

    Raises:
        InvalidKeyError: a key of `study.tune` does not suit the study.
    """
    selected = settings.select
    if tune.seed in settings.study.seeds:
        raise (TUNE / "seed").error(f"{tune.seed} is one of study.seeds; take another")
    for label in tune.per_method:
        (TUNE / "per_method").check_known(label, selected.methods, "the study runs no")

    # the trials of each method that trains
    methods = dict(settings.methods)
    trials = {}
    for label in selected.methods:
        method = settings.methods[label]
        if method.member is not None:
            raise (CONFIG / "methods" / method.member.grid).error(
                "a grid gives its members their options, and study.tune chooses options; put them "
                "into different studies"
            )
        if not find_method(method.plugin).trained:
            continue
        made = _trials(method, tune)
        for _, trial in made:
            if trial.label in methods:
                raise TUNE.error(f"'{trial.label}' is a trial and another label too; rename that")
            methods[trial.label] = trial
        trials[label] = tuple(Trial(trial.label, options) for options, trial in made)

    # the trials' partitions, whose test images are a share of the clients' training images
    partitions = dict(settings.partitions)
    protocols = dict(settings.protocols)
    for label in selected.partitions:
        whole = settings.partitions[label]
        name = label + VALIDATION
        if name in partitions:
            raise (CONFIG / "partitions" / name).error("trials take this label; rename it")
        keys = whole.settings | {"validation": tune.validation}
        partitions[name] = Partition(name, whole.scheme, keys)
        protocols[name] = settings.protocols[label]
    return replace(
        settings,
        methods=PluginCatalogue(methods, settings.methods.errors),
        partitions=partitions,
        protocols=protocols,
        trials=trials,
    )


def trial_combinations(values: Axes, own: Axes, trials: int, label: str) -> list[JsonDict]:
    """List the distinct combinations of option values that a method tries.

    Each trial takes the next combination of `values` and the next combination of `own`. Each of
    these lists starts again after its end; in each, the last option changes fastest.

    Args:
        values: the options that all methods try, and their values.
        own: the options that this method alone tries, and their values.
        trials: the number of combinations.
        label: the method's label, for an error.

    Raises:
        InvalidKeyError: `trials` is too small or too large.
    """
    common = grids.combine_axes(values)
    others = grids.combine_axes(own)
    count = len(common) * len(others)
    if not len(common) <= trials <= count:
        raise (TUNE / "trials").error(
            f"must be from {len(common)} (the combinations of `values`) to {count} (those of "
            f"methods.{label} with per_method.{label}), got {trials}"
        )

    # Each trial takes the next item of both lists. After `period` trials, the same pairs would come
    # again, so the second list is shifted by one.
    period = lcm(len(common), len(others))
    found = []
    for number in range(trials):
        shift = number // period
        found.append(common[number % len(common)] | others[(number + shift) % len(others)])
    return found


def _trials(method: Method, tune: Tune) -> list[tuple[JsonDict, Method]]:
    """Return a method's trials: for each, the options in which trials differ, and its method."""
    where = KeyPath(TUNE, ("methods", method.label))
    own = tune.per_method.get(method.label, {})
    if both := tune.values.keys() & own.keys():
        at = TUNE / "per_method" / method.label
        raise at.error(f"'{min(both)}' is one of study.tune.values; keep one")

    # one method for each combination that is tried
    members = grids.members(_make_grid(method, tune.values | own, where))
    made = []
    for wanted in trial_combinations(tune.values, own, tune.trials, method.label):
        label, title, member = next(each for each in members if each[2].at == wanted)
        trial = _varied(method, label, title, member.options, where)
        _check_wrappers(trial, where)

        # if trials gave different artefacts, a figure could lack those of the chosen trial
        if set(trial.artefacts) != set(method.artefacts):
            changed = ", ".join(
                f"{axis} {grids.value_text(value)}" for axis, value in wanted.items()
            )
            raise where.error(f"gives other artefacts with {changed}; leave that out")
        made.append((member.options, trial))
    return made
