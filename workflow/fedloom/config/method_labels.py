"""Resolve the labels of methods: plugins with their options, grids and trials.

A trial of `study.tune` is a method with some options set, trained on a partition of the study in
which a share of every client's training images takes the place of its test images.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from math import lcm
from typing import Any

from fedloom.common.errors import FedLoomError, check_known
from fedloom.config import grids
from fedloom.config.reading import CONFIG
from fedloom.config.settings import (
    VALIDATION,
    Backbone,
    Grid,
    Method,
    Partition,
    Settings,
    Trial,
    Wrapper,
)
from fedloom.config.study import Axes, MethodEntry, Tune, WrapperEntry
from fedloom.hooks.discovery import Found
from fedloom.hooks.manifest import Plugin, discover, find
from fedloom.hooks.training import Training

TUNE = f"{CONFIG} study.tune"


def implied(labels: list[str], methods: dict[str, MethodEntry]) -> dict[str, MethodEntry]:
    """Return entries for the selected labels that are names of plugins and defined nowhere."""
    plugins = discover()
    return {
        label: MethodEntry(plugin=label)
        for label in labels
        if label not in methods
        and (label in plugins.broken or (label in plugins and plugins[label].kind == "method"))
    }


def resolve_methods(
    methods: dict[str, MethodEntry], training: Training
) -> tuple[Found[Method], dict[str, Grid]]:
    """Return the methods by label, members of grids among them, and the grids by label.

    A label of a broken plugin is broken too. `training` are the study's options.
    """
    resolved: Found[Method] = Found()
    all_grids: dict[str, Grid] = {}
    for label, entry in methods.items():
        where = f"{CONFIG} methods.{label}"
        for name in (entry.plugin, *(around.plugin for around in entry.wrappers)):
            if name in discover().broken:
                resolved.broken[label] = discover().broken[name]
        if label in resolved.broken:
            continue
        plugin = find(entry.plugin, f"{where}.plugin", "method")
        around, wrappers = _wrappers(entry.wrappers, where)
        options = plugin.options(entry.options, f"{where}.options")
        method = Method(
            label=label,
            plugin=plugin.name,
            title=entry.title or (plugin.title if label == plugin.name else label),
            options=options,
            training=plugin.training(training.given, entry.training.given),
            wrappers=wrappers,
            families=plugin.families,
            needs=plugin.needs,
            artefacts=plugin.all_artefacts(options) + _audits(wrappers),
            look=plugin.look.plain,
            own_training=entry.training.given,
            rounds=entry.rounds,
        )
        added = [(label, method)]
        if entry.grid is not None:
            grid = all_grids[label] = grid_of(method, entry.grid, plugin, f"{where}.grid")
            added = _members(method, grid, f"{where}.grid")
        for name, each in added:
            reason = plugin.refused_wrappers(each.options, around)
            if reason is not None:
                raise FedLoomError(f"{where}.wrappers: {reason}")
            if name in resolved or (name != label and name in methods):
                line = f"{where}.grid: '{name}' is another label too"
                raise FedLoomError(f"{line}; leave one of them out")
            resolved[name] = each
    return resolved, all_grids


def _wrappers(
    entries: list[WrapperEntry], where: str
) -> tuple[tuple[Plugin, ...], tuple[Wrapper, ...]]:
    """Check a label's wrappers, and return their plugins and their options, filled in."""
    names = [entry.plugin for entry in entries]
    if len(set(names)) < len(names):
        raise FedLoomError(f"{where}.wrappers: the list has a wrapper twice; name each once")
    plugins, wrappers = [], []
    for i, entry in enumerate(entries):
        plugin = find(entry.plugin, f"{where}.wrappers[{i}].plugin", "wrapper")
        options = plugin.options(entry.options, f"{where}.wrappers[{i}].options")
        plugins.append(plugin)
        wrappers.append(Wrapper(plugin.name, options))
    return tuple(plugins), tuple(wrappers)


def _audits(wrappers: Iterable[Wrapper]) -> tuple[str, ...]:
    """Return the tables that a label's wrappers give."""
    return tuple(name for w in wrappers for name in find(w.plugin).artefacts_with(w.options))


def grid_of(method: Method, axes: dict[str, list], plugin: Plugin, where: str) -> Grid:
    """Return the grid around a method, once its axes are checked."""
    every = dict.fromkeys(Training.model_fields) | method.training
    options = method.options | {f"{grids.TRAINING}{name}": v for name, v in every.items()}
    grids.check_axes(axes, options, plugin.option_schemas, where)
    touched = dict.fromkeys(grids.split(axis)[0] for axis in axes)
    return Grid(
        label=method.label,
        title=method.title,
        axes=tuple(axes.items()),
        options=tuple((option, options[option]) for option in touched),
    )


def _varied(method: Method, label: str, title: str, options: dict[str, Any], where: str) -> Method:
    """Return a method with another label and other values of some options, training's too."""
    plugin, (own, swept) = find(method.plugin), grids.parted(options)
    checked = plugin.options(method.options | own, where)
    return replace(
        method,
        label=label,
        title=title,
        options=checked,
        training=method.training | swept,
        own_training=method.own_training | swept,
        artefacts=plugin.all_artefacts(checked) + _audits(method.wrappers),
    )


def _members(method: Method, grid: Grid, where: str) -> list[tuple[str, Method]]:
    """Return the methods that a grid stands for, after their labels."""
    return [
        (name, replace(_varied(method, name, title, member.options, where), member=member))
        for name, title, member in grids.members(grid)
    ]


def method_names(methods: dict[str, Method], all_grids: dict[str, Grid]) -> list[str]:
    """List what a study may call methods: labels, and grids in place of their members."""
    return [k for k, method in methods.items() if method.member is None] + [*all_grids]


def expand(
    names: Iterable[str], methods: Found[Method], all_grids: dict[str, Grid], where: str
) -> list[str]:
    """Return the labels that `names` stand for: all members of a grid by its own label."""
    labels: dict[str, None] = {}
    for name in names:
        if name in all_grids:
            labels |= dict.fromkeys(label for label, *_ in grids.members(all_grids[name]))
        elif name in methods.broken:
            raise methods.broken[name]
        else:
            if name not in methods:
                check_known(name, method_names(methods, all_grids), f"{where}: no label")
            labels[name] = None
    return list(labels)


def check_families(methods: Iterable[Method], backbones: Sequence[Backbone], where: str) -> None:
    """Check that every method of a table or figure (`where`) works on every backbone of it."""
    for method, backbone in product(methods, backbones):
        if backbone.family not in method.families:
            raise FedLoomError(
                f"{where}: methods.{method.label} works on a {' or '.join(method.families)}, "
                f"backbones.{backbone.label} is a {backbone.family}; show them in different "
                "tables or figures (methods, backbones)"
            )


# ---- trials --------------------------------------------------------------------------------------


def with_trials(settings: Settings, tune: Tune) -> Settings:
    """Return the settings with the trials that `study.tune` asks for, and their partitions."""
    selected = settings.select
    if tune.seed in settings.study.seeds:
        raise FedLoomError(f"{TUNE}.seed: {tune.seed} is one of study.seeds; take another")
    for label in tune.per_method:
        check_known(label, selected.methods, f"{TUNE}.per_method: the study runs no")
    methods, trials = copy(settings.methods), {}
    for label in selected.methods:
        method = settings.methods[label]
        if method.member is not None:
            raise FedLoomError(
                f"{CONFIG} methods.{method.member.grid}: a grid gives its members their options, "
                "and study.tune chooses options; put them into different studies"
            )
        if not find(method.plugin).trained:
            continue
        made = _trials(method, tune)
        for _, trial in made:
            if trial.label in methods:
                line = f"{TUNE}: '{trial.label}' is a trial and another label too; rename that"
                raise FedLoomError(line)
            methods[trial.label] = trial
        trials[label] = tuple(Trial(trial.label, options) for options, trial in made)
    partitions, protocols = dict(settings.partitions), dict(settings.protocols)
    for label in selected.partitions:
        whole, name = settings.partitions[label], label + VALIDATION
        if name in partitions:
            raise FedLoomError(f"{CONFIG} partitions.{name}: trials take this label; rename it")
        # the test images are a share of the clients' training images
        keys = whole.settings | {"validation": tune.validation}
        partitions[name] = Partition(name, whole.scheme, keys)
        protocols[name] = settings.protocols[label]
    return replace(
        settings, methods=methods, partitions=partitions, protocols=protocols, trials=trials
    )


def combinations(values: Axes, own: Axes, trials: int, label: str) -> list[dict[str, Any]]:
    """List the combinations of values that a method tries, by option.

    The values that all methods try take turns, the last option changing fastest, and so do a
    method's own beside them; no combination comes twice. All are tried as often, or once more.
    """
    common, others = (
        [dict(zip(axes, each, strict=True)) for each in product(*axes.values())]
        for axes in (values, own)
    )
    count = len(common) * len(others)
    if trials < len(common):
        raise FedLoomError(
            f"{TUNE}.trials: {trials}, but `values` has {len(common)} combinations, and every "
            "method tries each of them"
        )
    if trials > count:
        raise FedLoomError(
            f"{TUNE}.trials: {trials}, but methods.{label} has {count} combinations; give it "
            f"more values (per_method.{label}), or make fewer trials"
        )
    period = lcm(len(common), len(others))  # after it, pairs would come again
    return [
        common[number % len(common)] | others[(number + number // period) % len(others)]
        for number in range(trials)
    ]


def _trials(method: Method, tune: Tune) -> list[tuple[dict[str, Any], Method]]:
    """Return a method's trials, each after the options in which the trials differ."""
    plugin, where = find(method.plugin), f"{TUNE}: methods.{method.label}"
    around = [find(wrapper.plugin) for wrapper in method.wrappers]
    values, own = tune.values, tune.per_method.get(method.label, {})
    both = values.keys() & own.keys()
    if both:
        at = f"{TUNE}.per_method.{method.label}"
        raise FedLoomError(f"{at}: '{min(both)}' is one of study.tune.values; keep one")
    members = grids.members(grid_of(method, values | own, plugin, where))
    made = []
    for wanted in combinations(values, own, tune.trials, method.label):
        label, title, member = next(each for each in members if each[2].at == wanted)
        trial = _varied(method, label, title, member.options, where)
        reason = plugin.refused_wrappers(trial.options, around)
        if reason is not None:
            raise FedLoomError(f"{where}: {reason}")
        if set(trial.artefacts) != set(method.artefacts):  # a figure might lack its own
            changed = ", ".join(f"{axis} {grids.text(value)}" for axis, value in wanted.items())
            raise FedLoomError(f"{where} gives other artefacts with {changed}; leave that out")
        made.append((member.options, trial))
    return made
