"""`fedloom show` and `fedloom diff`: what a run was given, where that comes from, and its curve."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fedloom.common.errors import FedLoomError, check_known, shortened
from fedloom.config.protocols import reported
from fedloom.planning import paths, provenance
from fedloom.planning.load_plan import SET, load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.runs import Run
from fedloom.report import metrics
from fedloom.report.run_settings import Setting, settings_of

WIDTH = 40  # characters of a value
ROWS = 12  # of a curve, at most
CURVES = {  # by their names here
    "participating_mean": "mean",
    "participating_worst": "worst",
    "held_out_mean": "held-out",
    "train_loss": "train loss",
}


def plan_of(every: Sequence[Run], study: Path | None, changes: tuple[str, ...]) -> Plan:
    """Return the plan of a study, which must have the runs' labels and say how they were made."""
    plan = load_plan([study] if study else [], {SET: changes})
    for run in every:
        for section in ("dataset", "partition", "backbone", "method"):
            known, label = getattr(plan.settings, f"{section}s"), getattr(run, section)
            check_known(label, known, f"study {plan.name} (--study names another): no {section}")
        settings = provenance.digest_of_settings(plan.run_spec(run))  # without rounds
        rounds = int(metrics.frame(paths.at(paths.ROUNDS, run))["round"].max())
        made_by = (provenance.facts_of_run(run)["settings"], rounds)
        if made_by != (settings, plan.study(run).rounds):
            raise FedLoomError(
                f"{run.path}: made with other settings or {rounds} rounds, not as "
                f"{plan.files[-1]} says; name its study with --study, or the same --set"
            )
    return plan


def accuracies(plan: Plan, run: Run) -> dict[str, float]:
    """Return a run's accuracies in percent over the rounds that tables report."""
    rows = metrics.evaluation(paths.at(paths.EVALUATION, run))
    return metrics.accuracies(rows, reported(plan.study(run)))


def _curve(run: Run) -> str:
    """Return at most ROWS evaluated rounds: mean, worst and held-out accuracy, training loss."""
    rows = metrics.evaluation(paths.at(paths.EVALUATION, run))
    loss = metrics.frame(paths.at(paths.ROUNDS, run)).set_index("round")["train_loss"]
    curves = metrics.curves(rows).join(loss)[list(CURVES)]
    curve = curves.rename(columns=CURVES).dropna(axis="columns", how="all")
    curve = curve[:: -ceil(len(curve) / ROWS)][::-1].reset_index()  # with the last round
    decimals = [{"round": "", "train loss": ".3f"}.get(str(name), ".1f") for name in curve]
    return tabulate(curve.to_dict("list"), headers="keys", floatfmt=decimals)


def show(run: Run, study: Path | None, changes: tuple[str, ...]) -> str:
    """Return a run's accuracies, its curve, and its settings with where each comes from."""
    plan = plan_of([run], study, changes)
    numbers = [f"{k.replace('_', ' ')} {n:.2f} %" for k, n in accuracies(plan, run).items()]
    table = [[key, _text(s.value), s.origin] for key, s in settings_of(plan, run)]
    settings = tabulate(table, ["setting", "value", "from"], disable_numparse=True)
    return f"{paths.at(paths.RUN, run)}\n{', '.join(numbers)}\n\n{_curve(run)}\n\n{settings}"


def diff(runs: tuple[Run, Run], study: Path | None, changes: tuple[str, ...]) -> str:
    """Return in which settings two runs differ, and their accuracies with the difference."""
    plan = plan_of(runs, study, changes)
    one, two = (dict(settings_of(plan, run)) for run in runs)
    absent = Setting("-", "")
    pairs = {key: (one.get(key, absent), two.get(key, absent)) for key in one | two}
    rows = [
        [key, _text(a.value), _text(b.value), "; ".join(filter(None, {a.origin: 0, b.origin: 0}))]
        for key, (a, b) in pairs.items()
        if a.value != b.value
    ]
    before, after = (accuracies(plan, run) for run in runs)
    numbers = [[k, before[k], after[k], after[k] - before[k]] for k in before if k in after]
    heads = [run.path for run in runs]
    settings = tabulate(rows, ["setting", *heads, "from"], disable_numparse=True)
    decimals = ("", ".2f", ".2f", "+.2f")
    change = tabulate(numbers, ["accuracy in %", *heads, "difference"], floatfmt=decimals)
    return f"{settings if rows else 'no setting differs'}\n\n{change}"


def _text(value: Any) -> str:
    return shortened(str(value), WIDTH)
