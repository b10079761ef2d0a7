"""List the settings of a run, each with its origin: default, method.toml, study or trial."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.config import grids
from fedloom.config.reading import find_definition, has_prefix
from fedloom.config.settings import VALIDATION
from fedloom.hooks.manifest import find
from fedloom.machine.install import ROOT
from fedloom.planning import choices, paths
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run

# keys of `study` that describe it, and those that are shown elsewhere
NOT_OF_A_RUN = {"name", "paper", "shows", "deviations", "open_questions", "seeds", "training"}
NOT_OF_A_RUN |= {"report", "tune", "fixed_seeds"}


class Setting(NamedTuple):
    """A value that a run was given, and where it was written."""

    value: Any
    origin: str


def settings_of(plan: Plan, run: Run) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a run, each with its key."""
    settings = plan.settings
    spec = choices.with_choice(plan.run_spec(run))
    method = settings.methods[run.method]
    plugin = find(spec.method.plugin)
    partition = run.partition.removesuffix(VALIDATION)
    label = method.member.grid if method.member else run.method
    varied = _varied(plan, run)
    above = (["methods", label], ["partitions", partition, "protocol"], ["study"])

    def setting(value: Any, *places: list[str], default: str = "default") -> Setting:
        for keys in places:
            changes = [change.text for change in plan.changes if has_prefix(keys, change.keys)]
            if changes:
                return Setting(value, f"--set {changes[-1]}")
            if found := find_definition(plan.files, keys):
                place = found[0].replace(f"{ROOT}/", "" if Path.cwd() == ROOT else "FedLoom's ", 1)
                return Setting(value, place if found[1] == value else f"{place}, capped")
        return Setting(value, default)

    def of_method(name: str, value: Any, declared: bool, *places: list[str]) -> Setting:
        if name in varied:
            return Setting(value, varied[name])
        default = f"method.toml of {plugin.name}" if declared else "default"
        return setting(value, *places, default=default)

    yield "plugin", setting(spec.method.plugin, ["methods", label, "plugin"])
    for key, value in spec.method.options.items():
        yield f"options.{key}", of_method(key, value, True, ["methods", label, "options", key])
    for n, wrapper in enumerate(spec.method.wrappers):
        for key, value in wrapper.options.items():
            place: Any = ["methods", label, "wrappers", n, "options", key]
            of_key = setting(value, place, default=f"method.toml of {wrapper.plugin}")
            yield f"wrappers.{wrapper.plugin}.{key}", of_key
    for key, value in spec.method.training.items():
        name = f"{grids.TRAINING}{key}"
        declared = key in plugin.training_defaults.given
        yield name, of_method(name, value, declared, *([*keys, "training", key] for keys in above))
    for key, value in plan.study(run).model_dump(exclude=NOT_OF_A_RUN, exclude_none=True).items():
        yield key, setting(value, *([*keys, key] for keys in above))
    scheme = settings.partitions[run.partition]
    entries = {
        ("datasets", run.dataset): settings.datasets[run.dataset].settings,
        ("partitions", partition): {"scheme": scheme.scheme} | scheme.settings,
        ("backbones", run.backbone): settings.backbones[run.backbone].settings,
    }
    for place, values in entries.items():
        for key, value in values.items():
            yield f"{place[0].removesuffix('s')}.{key}", setting(value, [*place, key])


def _varied(plan: Plan, run: Run) -> dict[str, str]:
    """Return the options that a grid, a trial or the choice among trials gives a run, and which."""
    method = plan.settings.methods[run.method]
    spec = plan.run_spec(run)
    if spec.tuned:
        file = paths.path_for(paths.CHOICE, run)
        return dict.fromkeys(choices.chosen_options(file), f"chosen: {file}")
    if method.member is not None:
        return dict.fromkeys(method.member.options, f"grid of methods.{method.member.grid}")
    trials = [trial for each in plan.settings.trials.values() for trial in each]
    of_run = [trial.options for trial in trials if trial.label == run.method]
    return dict.fromkeys(of_run[0], "study.tune") if of_run else {}
