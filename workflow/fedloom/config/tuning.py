"""`study.tune`: the trials from which every method's options are chosen, as runs like any other.

A trial is the method with some options set, trained on a partition of its own: that of the study
with a share of every client's training images in the place of its test images.
"""

from copy import copy
from dataclasses import replace
from itertools import product
from math import lcm
from typing import Any

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.config import grids
from fedloom.config.method_labels import check_parts, grid_of
from fedloom.config.protocols import methods_of
from fedloom.config.reading import CONFIG
from fedloom.config.settings import VALIDATION, Method, Partition, Settings, Trial, Tuning
from fedloom.config.study import Tune
from fedloom.hooks import compatibility
from fedloom.hooks.manifest import find

WHERE = f"{CONFIG} study.tune"
Axes = dict[str, list]


def with_trials(settings: Settings, entry: Tune) -> Settings:
    """Return the settings with the trials that `tune` asks for, and their partitions.

    Args:
        settings: of the study, its methods selected.
        entry: the config's `study.tune`.

    Raises:
        FedLoomError: a method, an option or a value that is not there, or a method that has
            not as many combinations as it must try.
    """
    study, selected = settings.study, settings.select
    if entry.seed in study.seeds:
        raise FedLoomError(f"{WHERE}.seed: {entry.seed} is one of study.seeds; take another")
    _check_labels(settings, entry)
    methods, trials = copy(settings.methods), {}
    for label in selected.methods:
        if not find(settings.methods[label].plugin).trained:
            continue
        made = _trials(settings.methods[label], entry)
        for _, method in made:
            if method.label in methods:
                line = f"{WHERE}: '{method.label}' is a trial and another label too; rename that"
                raise FedLoomError(line)
            methods[method.label] = method
        trials[label] = tuple(trial for trial, _ in made)
    partitions, protocols = dict(settings.partitions), dict(settings.protocols)
    for label in selected.partitions:
        partition = _partition(settings.partitions[label], entry.validation)
        if partition.label in partitions:
            line = f"{CONFIG} partitions.{partition.label}: trials take this label; rename it"
            raise FedLoomError(line)
        partitions[partition.label] = partition
        protocols[partition.label] = settings.protocols[label]
    tuning = Tuning(entry.rounds, entry.seed, entry.validation, trials)
    changed = replace(
        settings, methods=methods, partitions=partitions, protocols=protocols, tuning=tuning
    )
    tried = [trial.label for each in trials.values() for trial in each]
    check_parts(methods_of(changed, tried), study)
    return changed


def combinations(values: Axes, own: Axes, trials: int, label: str) -> list[dict[str, Any]]:
    """List the combinations of values that a method tries, by option.

    The values that all methods try take turns, the last option changing fastest, and so do a
    method's own beside them; no combination comes twice. All are tried as often, or once more.

    Raises:
        FedLoomError: the method has fewer combinations than trials, or there are more common
            combinations than trials.
    """
    common, others = _products(values), _products(own)
    count = len(common) * len(others)
    if trials < len(common):
        raise FedLoomError(
            f"{WHERE}.trials: {trials}, but `values` has {len(common)} combinations, and every "
            "method tries each of them"
        )
    if trials > count:
        raise FedLoomError(
            f"{WHERE}.trials: {trials}, but methods.{label} has {count} combinations; give it "
            f"values of its own (per_method.{label}), or make fewer trials"
        )
    period = lcm(len(common), len(others))  # after it, pairs would come again
    return [
        common[number % len(common)] | others[(number + number // period) % len(others)]
        for number in range(trials)
    ]


def _products(axes: Axes) -> list[dict[str, Any]]:
    """List every combination of the axes' values; without axes, the one of nothing."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _check_labels(settings: Settings, entry: Tune) -> None:
    """Check that `per_method` names methods of the study, and that none of these is of a grid."""
    selected = settings.select.methods
    for label in entry.per_method:
        if label not in selected:
            hint = suggestion(label, list(selected))
            raise FedLoomError(f"{WHERE}.per_method: the study runs no '{label}'; {hint}")
    for label in selected:
        member = settings.methods[label].member
        if member is not None:
            raise FedLoomError(
                f"{CONFIG} methods.{member.grid}: a grid gives its members their options, and "
                "study.tune chooses options; put them into different studies"
            )


def _trials(method: Method, entry: Tune) -> list[tuple[Trial, Method]]:
    """Return a method's trials, and each as a method.

    Raises:
        FedLoomError: an axis is no option, a value is none that it takes or that its wrappers
            allow, or with one of them the method gives other artefacts, so that a figure might lack
            its own.
    """
    plugin, where = find(method.plugin), f"{WHERE}: methods.{method.label}"
    values, own = entry.values, entry.per_method.get(method.label, {})
    both = values.keys() & own.keys()
    if both:
        at = f"{WHERE}.per_method.{method.label}"
        raise FedLoomError(f"{at}: '{min(both)}' is one of study.tune.values; keep one")
    axes = values | own
    grid = grid_of(method.label, method.title, axes, method.options, method.training, plugin, where)
    members = grids.members(grid)
    made = []
    for wanted in combinations(values, own, entry.trials, method.label):
        label, title, member = next(each for each in members if each[2].at == wanted)
        options = plugin.options(method.options | grids.of_method(member.options), where)
        swept = grids.of_training(member.options)
        around = [find(wrapper.plugin) for wrapper in method.wrappers]
        reason = compatibility.refusal(plugin, options, around)
        if reason is not None:
            raise FedLoomError(f"{where}: {reason}")
        if set(plugin.artefacts_with(options)) != set(method.artefacts):
            changed = ", ".join(f"{axis} {grids.text(value)}" for axis, value in wanted.items())
            raise FedLoomError(f"{where} gives other artefacts with {changed}; leave that out")
        changes = {
            "label": label,
            "title": title,
            "options": options,
            "training": method.training | swept,
            "own_training": method.own_training | swept,
        }
        made.append((Trial(label, member.options), replace(method, **changes)))
    return made


def _partition(partition: Partition, share: float) -> Partition:
    """Return the partition whose test images are a share of the clients' training images."""
    settings = partition.settings | {"validation": share}
    return Partition(partition.label + VALIDATION, partition.scheme, settings)
