"""`fedloom plan`: what a study costs before it runs, as text for the terminal."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tabulate import tabulate

from fedloom.commands.planning import load_plan
from fedloom.common.errors import FedLoomError
from fedloom.hooks.manifest import find
from fedloom.study.cost import RATES, Cost, study_cost
from fedloom.study.estimates import workload
from fedloom.study.plan import Plan
from fedloom.study.resources import RATE, contents

MANY = 4  # scenarios, which are not named each
MUCH_START_UP = 0.05  # share of the time of training jobs


def text(files: Sequence[Path], tera: float | None = None) -> str:
    """Return what a study costs on a GPU of `tera` times 10^12 operations per second."""
    plan = load_plan(files)
    cost = study_cost(plan)
    return _text(plan, cost, RATES[cost.precision] if tera is None else 1e12 * tera)


def _text(plan: Plan, cost: Cost, rate: float) -> str:
    """Return the cost of a study, a fact a line; `rate` is the GPU's operations per second."""
    trials = f", and {cost.trials} trials before them" if cost.trials else ""
    jobs = ", ".join(f"{count:,} {rule}" for rule, count in cost.jobs.items())
    disk = ", ".join(f"{kind} {megabytes(size)}" for kind, size in cost.disk.items())
    facts = [
        ["study", plan.name],
        ["runs", f"{cost.runs:,}{trials}"],
        ["a client", _of_a_client(plan)],
        ["jobs", f"{sum(cost.jobs.values()):,}: {jobs}"],
        ["operations", f"{cost.operations:.2g}"],
        ["one GPU", f"{hours(cost.gpu_hours(rate))} at {rate / 1e12:g} tera a second (assumed)"],
        ["longest run", f"{hours(cost.longest / rate / 3600)}, which no second GPU shortens"],
        ["cores alone", f"{hours(cost.core_hours())} of one core (at {RATE:.0e} a second)"],
        ["disk", f"{disk}; states of runs beside them"],
        ["sent", _sent(plan)],
    ]
    lines = [tabulate(facts, tablefmt="plain", disable_numparse=True)]
    share = cost.start_up_share(rate)
    if share > MUCH_START_UP:
        line = f"note: {share:.0%} of the training jobs' time on such a GPU is their start-up"
        fewer = cost.jobs["train"] > cost.runs + cost.trials
        lines.append(line + ("; a larger study.rounds_per_job makes fewer" if fewer else ""))
    return "\n".join(lines)


def _of_a_client(plan: Plan) -> str:
    """Return how many training images a client has on average, by scenario.

    Before a dataset's store is written, that is an estimate.
    """
    found = {f"{run.dataset}/{run.partition}": run for run in plan.runs}
    numbers = {
        name: workload(plan.settings, run, run.method).images_of_a_client()
        for name, run in found.items()
    }
    if len(numbers) > MANY:
        return f"{min(numbers.values()):,.0f} to {max(numbers.values()):,.0f} training images"
    return "training images: " + ", ".join(f"{n:,.0f} of {name}" for name, n in numbers.items())


def hours(number: float) -> str:
    """Write a time in hours as people say it."""
    if number < 1:
        return f"{max(1, round(60 * number))} min"
    return f"{number:.1f} h" if number < 48 else f"{number / 24:.1f} days"


def megabytes(size: float) -> str:
    """Write megabytes in a unit that fits."""
    for unit in ("MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _sent(plan: Plan) -> str:
    """Return the bytes that servers send to clients, by the shapes of the methods."""
    from fedloom.commands.downlink import downlink_floats

    settings, total, uncounted = plan.settings, 0.0, set[str]()

    @cache
    def floats(label: str, backbone: str, classes: int) -> int:
        method = settings.methods[label]
        options = {name: method.options[name] for name in find(method.plugin).option_schemas}
        return sum(downlink_floats(method.plugin, backbone, classes, options).values())

    for run in plan.runs:
        classes, study = contents(settings.datasets[run.dataset]).classes, plan.study(run)
        try:
            count = floats(run.method, settings.backbones[run.backbone].settings["name"], classes)
            total += 4 * count * study.clients_per_round * study.rounds
        except FedLoomError:
            uncounted.add(run.method)
    text = f"{megabytes(total / 1e6)} by the servers to clients"
    return text + (f"; not counted: {', '.join(sorted(uncounted))}" if uncounted else "")
