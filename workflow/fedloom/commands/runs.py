"""`fedloom show` and `fedloom diff`: what a run was given, where that comes from, and its curve."""

import re
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from tabulate import tabulate

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, check_known, shortened, suggestion
from fedloom.config import grids
from fedloom.config.reading import written
from fedloom.config.rounds import reported
from fedloom.config.settings import VALIDATION
from fedloom.hooks.manifest import find
from fedloom.report import metrics
from fedloom.study import paths, provenance, selected
from fedloom.study.plan import Plan
from fedloom.study.runs import Run

WIDTH = 40  # characters of a value
ROWS = 12  # of a curve, at most
# keys of `study` that describe it, and those that are shown elsewhere
NOT_OF_A_RUN = {"name", "paper", "shows", "deviations", "open_questions", "seeds", "training"}
NOT_OF_A_RUN |= {"report", "tune", "fixed_seeds"}


class Setting(NamedTuple):
    """A value that a run was given, and where it was written."""

    value: Any
    origin: str


def run_of(name: str, plan: Plan) -> Run:
    """Return the run that a folder below results/runs is of; the study must have its labels."""
    found = re.search(r"([^/]+)/([^/]+)/([^/]+)/([^/]+)/seed(\d+)/?$", name)
    if found is None:
        form = paths.NAME.replace("{", "<").replace("}", ">")
        raise FedLoomError(f"{name}: must be the folder of a run, {form}")
    run = Run(found[1], found[2], found[3], found[4], int(found[5]))
    if not paths.at(paths.EVALUATION, run).is_file():
        folders = Path().glob(re.sub(r"{\w+}", "*", paths.EVALUATION))
        near = suggestion(run.path, [str(Path(*file.parts[2:-1])) for file in folders])
        raise FedLoomError(f"{run.path}: no run that has finished; {shortened(near)}")
    for section in ("dataset", "partition", "backbone", "method"):
        known, label = getattr(plan.settings, f"{section}s"), getattr(run, section)
        check_known(label, known, f"study {plan.name} (--study names another): no {section}")
    made_by = provenance.facts_of_run(run)["settings"]
    if made_by != provenance.digest_of_settings(plan.run_spec(run)):
        raise FedLoomError(
            f"{run.path}: made with other settings than {plan.files[-1]} gives; name its study "
            "with --study, or the same --set"
        )
    return run


def settings_of(plan: Plan, run: Run) -> Iterator[tuple[str, Setting]]:
    """Yield what a run was given, each value with its key."""
    settings, spec = plan.settings, selected.with_choice(plan.run_spec(run))
    method, plugin = settings.methods[run.method], find(spec.method.plugin)
    partition = run.partition.removesuffix(VALIDATION)
    label = method.member.grid if method.member else run.method
    varied = _varied(plan, run)
    above = (["methods", label], ["partitions", partition, "protocol"], ["study"])

    def setting(value: Any, *places: list[str], default: str = "default") -> Setting:
        found = next(filter(None, (written(plan.files, keys) for keys in places)), None)
        if found is None:
            return Setting(value, default)
        place = found[0].removeprefix(f"{ROOT}/")
        return Setting(value, place if found[1] == value else f"{place}, capped")

    def of_method(name: str, value: Any, declared: bool, *places: list[str]) -> Setting:
        if name in varied:
            return Setting(value, varied[name])
        default = f"method.toml of {plugin.name}" if declared else "default"
        return setting(value, *places, default=default)

    yield "plugin", setting(spec.method.plugin, ["methods", label, "plugin"])
    for key, value in spec.method.options.items():
        yield f"options.{key}", of_method(key, value, True, ["methods", label, "options", key])
    for wrapper in spec.method.wrappers:
        for key, value in wrapper.options.items():
            place = f"methods.{label}.wrappers, or method.toml of {wrapper.plugin}"
            yield f"wrappers.{wrapper.plugin}.{key}", Setting(value, place)
    for key, value in spec.method.training.items():
        name, declared = f"{grids.TRAINING}{key}", key in plugin.training_defaults.given
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
    method, spec = plan.settings.methods[run.method], plan.run_spec(run)
    if spec.tuned:
        file = paths.at(paths.CHOICE, run)
        return dict.fromkeys(selected.chosen_options(file), f"chosen: {file}")
    if method.member is not None:
        return dict.fromkeys(method.member.options, f"grid of methods.{method.member.grid}")
    trials = [trial for each in plan.settings.trials.values() for trial in each]
    of_run = [trial.options for trial in trials if trial.label == run.method]
    return dict.fromkeys(of_run[0], "study.tune") if of_run else {}


def accuracies(plan: Plan, run: Run) -> dict[str, float]:
    """Return a run's accuracies in percent over the rounds that tables report."""
    rows = metrics.evaluation(paths.at(paths.EVALUATION, run))
    return metrics.accuracies(rows, reported(plan.study(run)))


def _curve(run: Run) -> str:
    """Return at most ROWS evaluated rounds: mean, worst and held-out accuracy, training loss."""
    rows = metrics.curves(metrics.evaluation(paths.at(paths.EVALUATION, run)))
    parts = {
        "mean": rows["participating_mean"],
        "worst": rows["participating_worst"],
        "held-out": rows["held_out_mean"],
        "train loss": metrics.frame(paths.at(paths.ROUNDS, run)).set_index("round")["train_loss"],
    }
    curve = pd.DataFrame(parts).loc[rows.index].dropna(axis="columns", how="all")
    curve = curve[:: -ceil(len(curve) / ROWS)][::-1].reset_index()  # with the last round
    decimals = [{"round": "", "train loss": ".3f"}.get(str(name), ".1f") for name in curve]
    return tabulate(curve.to_dict("list"), headers="keys", floatfmt=decimals)


def show(plan: Plan, name: str) -> str:
    """Return a run's accuracies, its curve, and its settings with where each comes from."""
    run = run_of(name, plan)
    numbers = [f"{k.replace('_', ' ')} {n:.2f} %" for k, n in accuracies(plan, run).items()]
    table = [[key, _text(s.value), s.origin] for key, s in settings_of(plan, run)]
    return "\n\n".join(
        [
            f"{paths.at(paths.RUN, run)}\n{', '.join(numbers)}",
            _curve(run),
            tabulate(table, ["setting", "value", "from"], disable_numparse=True),
        ]
    )


def diff(plans: tuple[Plan, Plan], names: tuple[str, str]) -> str:
    """Return in which settings two runs differ, and their accuracies with the difference."""
    runs = [run_of(name, plan) for name, plan in zip(names, plans, strict=True)]
    one, two = (dict(settings_of(plan, run)) for plan, run in zip(plans, runs, strict=True))
    absent = Setting("-", "")
    pairs = {key: (one.get(key, absent), two.get(key, absent)) for key in one | two}
    rows = [
        [key, _text(a.value), _text(b.value), "; ".join(filter(None, {a.origin: 0, b.origin: 0}))]
        for key, (a, b) in pairs.items()
        if a.value != b.value
    ]
    before, after = (accuracies(plan, run) for plan, run in zip(plans, runs, strict=True))
    numbers = [[k, before[k], after[k], after[k] - before[k]] for k in before if k in after]
    heads = [run.path for run in runs]
    settings = tabulate(rows, ["setting", *heads, "from"], disable_numparse=True)
    decimals = ("", ".2f", ".2f", "+.2f")
    change = tabulate(numbers, ["accuracy in %", *heads, "difference"], floatfmt=decimals)
    return f"{settings if rows else 'no setting differs'}\n\n{change}"


def _text(value: Any) -> str:
    return shortened(str(value), WIDTH)
