"""`fedloom show` and `fedloom diff`: show a run's settings, their origins, and its accuracies."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from tabulate import tabulate

from fedloom.common.errors import FedLoomError, check_known, shorten
from fedloom.config.protocols import reported_rounds
from fedloom.planning import paths, provenance
from fedloom.planning.load_plan import CHANGES_KEY, load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.report import metrics
from fedloom.report.run_settings import Setting, run_settings

# the most characters of a value that are shown
VALUE_WIDTH = 40
# the most rows of a curve that are shown
MOST_ROWS = 12
# the columns of a curve, and their headings here
PRINTED_CURVES = {
    "participating_mean": "mean",
    "participating_worst": "worst",
    "held_out_mean": "held-out",
    "train_loss": "train loss",
}


def show_run(run: Run, study: Path | None, changes: tuple[str, ...]) -> str:
    """Return a run's accuracies, its curve, its settings, and the origin of each setting."""
    plan = _plan_of_runs([run], study, changes)

    numbers = list[str]()
    for name, number in _reported_accuracies(plan, run).items():
        numbers.append(f"{name.replace('_', ' ')} {number:.2f} %")

    rows = list[list[str]]()
    for key, setting in run_settings(plan, run):
        rows.append([key, _short_text(setting.value), setting.origin])
    settings = tabulate(rows, ["setting", "value", "from"], disable_numparse=True)

    folder = paths.path_for(paths.RUN, run)
    return f"{folder}\n{', '.join(numbers)}\n\n{_curve(run)}\n\n{settings}"


def compare_runs(runs: tuple[Run, Run], study: Path | None, changes: tuple[str, ...]) -> str:
    """Return the settings in which two runs differ, their accuracies, and the differences."""
    plan = _plan_of_runs(runs, study, changes)
    titles = [run.path for run in runs]

    # list the settings that differ
    first = dict(run_settings(plan, runs[0]))
    second = dict(run_settings(plan, runs[1]))
    absent = Setting("-", "")
    rows = []
    for key in first | second:
        one = first.get(key, absent)
        other = second.get(key, absent)
        if one.value == other.value:
            continue

        # an origin that both share is named once
        origins = dict.fromkeys([one.origin, other.origin])
        shown = "; ".join(origin for origin in origins if origin)
        rows.append([key, _short_text(one.value), _short_text(other.value), shown])

    settings = "no setting differs"
    if rows:
        settings = tabulate(rows, ["setting", *titles, "from"], disable_numparse=True)

    # list the accuracies that both have
    before = _reported_accuracies(plan, runs[0])
    after = _reported_accuracies(plan, runs[1])
    numbers = []
    for name in before:
        if name in after:
            numbers.append([name, before[name], after[name], after[name] - before[name]])
    decimals = ("", ".2f", ".2f", "+.2f")
    change = tabulate(numbers, ["accuracy in %", *titles, "difference"], floatfmt=decimals)
    return f"{settings}\n\n{change}"


def _plan_of_runs(runs: Sequence[Run], study: Path | None, changes: tuple[str, ...]) -> Plan:
    """Return the plan of a study by which the runs were made.

    Raises:
        FedLoomError: the study lacks a label of the runs, or they were made with other settings.
    """
    files = list[Path]()
    if study is not None:
        files.append(study)
    plan = load_plan(files, {CHANGES_KEY: changes})

    for run in runs:
        for section in ("dataset", "partition", "backbone", "method"):
            known = getattr(plan.settings, f"{section}s")
            label = getattr(run, section)
            check_known(
                label, known, f"study {plan.name} (choose another with --study) has no {section}"
            )

        # the number of rounds is compared too, since the digest of the settings leaves it out
        settings = provenance.digest_of_settings(plan.run_spec(run))
        rounds = int(metrics.frame(paths.path_for(paths.ROUNDS, run))["round"].max())
        same_settings = provenance.facts_of_run(run)["settings"] == settings
        if not same_settings or rounds != plan.study(run).rounds:
            raise FedLoomError(
                f"{run.path}: its settings, or its number of rounds ({rounds}), must be those of "
                f"{plan.files[-1]}; name its study with --study, or repeat its --set"
            )
    return plan


def _reported_accuracies(plan: Plan, run: Run) -> dict[str, float]:
    """Return a run's accuracies in percent over the rounds that tables report."""
    rows = metrics.evaluation(paths.path_for(paths.EVALUATION, run))
    return metrics.accuracies(rows, reported_rounds(plan.study(run)))


def _curve(run: Run) -> str:
    """Return at most MOST_ROWS evaluated rounds: accuracies in percent, and training loss."""
    rows = metrics.evaluation(paths.path_for(paths.EVALUATION, run))
    loss = metrics.frame(paths.path_for(paths.ROUNDS, run)).set_index("round")["train_loss"]
    curves = metrics.curves(rows).join(loss)[list(PRINTED_CURVES)]
    curve = curves.rename(columns=PRINTED_CURVES).dropna(axis="columns", how="all")

    # thin it out from the end, so that the last round is shown
    step = ceil(len(curve) / MOST_ROWS)
    positions = range(len(curve) - 1, -1, -step)
    curve = curve.iloc[sorted(positions)].reset_index()

    formats = {"round": "", "train loss": ".3f"}
    decimals = [formats.get(str(name), ".1f") for name in curve]
    return tabulate(curve.to_dict("list"), headers="keys", floatfmt=decimals)


def _short_text(value: object) -> str:
    """Return a value as text that fits into a cell."""
    return shorten(str(value), VALUE_WIDTH)
