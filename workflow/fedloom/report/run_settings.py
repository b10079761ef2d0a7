"""List the settings of a run, each with its origin: default, method.toml, study or trial."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fedloom.common.json_types import JsonValue
from fedloom.config import grids
from fedloom.config.reading import find_definition, has_prefix
from fedloom.config.settings import VALIDATION
from fedloom.hooks.manifest import find_method
from fedloom.machine.install import ROOT
from fedloom.planning import choices, paths
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run

# keys of `study` that only describe it, and keys that the report shows elsewhere
NOT_OF_A_RUN = {
    "name",
    "paper",
    "shows",
    "deviations",
    "open_questions",
    "remark",
    "seeds",
    "training",
}
NOT_OF_A_RUN |= {"report", "tune", "fixed_seeds"}


class Setting(NamedTuple):
    """A value that a run was given, and where it was written."""

    value: JsonValue
    origin: str


def run_settings(plan: Plan, run: Run) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a run, each with its key."""
    settings = plan.settings
    partition = run.partition.removesuffix(VALIDATION)
    method = settings.methods[run.method]
    label = run.method
    if method.member:
        label = method.member.grid
    # the parts of a config that set training options and keys of `study`, the strongest first
    above = (["methods", label], ["partitions", partition, "protocol"], ["study"])

    yield from _of_method(plan, run, label, above)

    # the keys of `study`
    keys_of_study = plan.study(run).model_dump(exclude=NOT_OF_A_RUN, exclude_none=True)
    for key, value in keys_of_study.items():
        yield key, _setting(plan, value, *([*keys, key] for keys in above))

    # the entries that the run's labels name
    scheme = settings.partitions[run.partition]
    entries = {
        ("datasets", run.dataset): settings.datasets[run.dataset].settings,
        ("partitions", partition): {"scheme": scheme.scheme} | scheme.settings,
        ("backbones", run.backbone): settings.backbones[run.backbone].settings,
    }
    for place, values in entries.items():
        for key, value in values.items():
            yield f"{place[0].removesuffix('s')}.{key}", _setting(plan, value, [*place, key])


def _of_method(
    plan: Plan, run: Run, label: str, above: tuple[list[str], ...]
) -> Iterator[tuple[str, Setting]]:
    """Yield a run's plugin, its options, the options of its wrappers, and its training options.

    Args:
        plan, run: the run and its plan.
        label: label of the method in the config; of a member of a grid, the label of the grid.
        above: key paths of the parts of the config that set training options, the strongest first.
    """
    spec = choices.with_choice(plan.run_spec(run))
    plugin = find_method(spec.method.plugin)
    varied = _varied(plan, run)

    def setting(
        name: str, value: JsonValue, declared: bool, *places: Sequence[str | int]
    ) -> Setting:
        """Return a setting; its origin is a grid or a trial, else the config, else method.toml."""
        if name in varied:
            return Setting(value, varied[name])
        default = "default"
        if declared:
            default = f"method.toml of {plugin.name}"
        return _setting(plan, value, *places, default=default)

    yield "plugin", _setting(plan, spec.method.plugin, ["methods", label, "plugin"])
    for key, value in spec.method.options.items():
        yield f"options.{key}", setting(key, value, True, ["methods", label, "options", key])

    for number, wrapper in enumerate(spec.method.wrappers):
        default = f"method.toml of {wrapper.plugin}"
        for key, value in wrapper.options.items():
            place = ["methods", label, "wrappers", number, "options", key]
            own_setting = _setting(plan, value, place, default=default)
            yield f"wrappers.{wrapper.plugin}.{key}", own_setting

    for key, value in spec.method.training.items():
        name = f"{grids.TRAINING}{key}"
        declared = key in plugin.training_defaults.given
        places = [[*keys, "training", key] for keys in above]
        yield name, setting(name, value, declared, *places)


def _setting(
    plan: Plan, value: JsonValue, *places: Sequence[str | int], default: str = "default"
) -> Setting:
    """Return a value with its origin: the first of the `places` that --set or a config file sets.

    If that file holds another value, the run's value was capped, and the origin says so.
    """
    for keys in places:
        changes = [change.text for change in plan.changes if has_prefix(keys, change.keys)]
        if changes:
            return Setting(value, f"--set {changes[-1]}")

        found = find_definition(plan.files, keys)
        if not found:
            continue
        # files of the checkout are named by their path in it
        owner = "FedLoom's "
        if Path.cwd() == ROOT:
            owner = ""
        place = found[0].replace(f"{ROOT}/", owner, 1)
        if found[1] != value:
            place = f"{place}, capped"
        return Setting(value, place)
    return Setting(value, default)


def _varied(plan: Plan, run: Run) -> dict[str, str]:
    """Return the origin of each option that a grid, a trial or a choice of trials gives a run."""
    method = plan.settings.methods[run.method]
    spec = plan.run_spec(run)

    # the choice among trials, or a grid
    if spec.tuned:
        file = paths.path_for(paths.CHOICE, run)
        return dict.fromkeys(choices.chosen_options(file), f"chosen: {file}")
    if method.member is not None:
        return dict.fromkeys(method.member.options, f"grid of methods.{method.member.grid}")

    # the trial to which the run belongs
    for trial in chain.from_iterable(plan.settings.trials.values()):
        if trial.label == run.method:
            return dict.fromkeys(trial.options, "study.tune")
    return {}
