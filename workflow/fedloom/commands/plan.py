"""`fedloom plan`: what a study costs before it runs, as text for the terminal."""

import argparse
import math
from pathlib import Path

from tabulate import tabulate

from fedloom.commands.planning import load_plan
from fedloom.common.errors import FedLoomError
from fedloom.config.protocols import method_of
from fedloom.hooks.manifest import find
from fedloom.study import bundled_studies
from fedloom.study.cost import RATES, Cost, study_cost
from fedloom.study.plan import Plan
from fedloom.study.resources import RATE
from fedloom.study.work import contents

MANY = 4  # scenarios, which are not named each
MUCH_START_UP = 0.05  # share of the time of training jobs


def add_to(commands: argparse._SubParsersAction) -> None:
    """Add `plan` to the commands of `fedloom`."""
    about = "print what a study costs before it runs: jobs, hours, disk, bytes"
    command = commands.add_parser("plan", help=about, description=about)
    command.add_argument(
        "study",
        nargs="*",
        type=Path,
        help="files of a study, or names that `fedloom studies` prints; default: config.yaml",
    )
    command.add_argument(
        "--rate",
        type=_rate,
        metavar="TERA",
        help="operations of your GPU per second, in 10^12; default: "
        + ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in RATES.items()),
    )
    command.set_defaults(function=run)


def run(args: argparse.Namespace) -> None:
    """Print what a study costs."""
    plan = load_plan([bundled_studies.file_of(study) for study in args.study])
    cost = study_cost(plan)
    rate = RATES[cost.precision] if args.rate is None else 1e12 * args.rate
    print(_text(plan, cost, rate))


def _text(plan: Plan, cost: Cost, rate: float) -> str:
    """Return what a study costs, a fact a line, and what to mend.

    Args:
        rate: operations per second of the GPU.
    """
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
        [
            "longest run",
            f"{hours(cost.longest / rate / 3600)} of it, which no second GPU shortens",
        ],
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
        name: plan.workload(run, run.method).images_of_a_client() for name, run in found.items()
    }
    if len(numbers) > MANY:
        return f"{min(numbers.values()):,.0f} to {max(numbers.values()):,.0f} training images"
    return "training images: " + ", ".join(f"{n:,.0f} of {name}" for name, n in numbers.items())


def _rate(text: str) -> float:
    """Return a positive number.

    Raises:
        ArgumentTypeError: it is none; argparse makes one line of it.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return rate


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
    """Return how many bytes servers send to clients, as the methods' shapes have it."""
    from fedloom.commands.downlink import downlink_floats

    total, uncounted = 0.0, set[str]()
    floats: dict[tuple, int | None] = {}
    for one in plan.runs:
        method = method_of(plan.settings, one.partition, one.method)
        backbone = plan.settings.backbones[one.backbone].settings["name"]
        classes = contents(plan.settings.datasets[one.dataset])[1]
        key = (one.method, backbone, classes)
        if key not in floats:
            options = {name: method.options[name] for name in find(method.plugin).option_schemas}
            try:
                counts = downlink_floats(method.plugin, backbone, classes, options)
                floats[key] = sum(counts.values())
            except FedLoomError:
                floats[key] = None
        count = floats[key]
        if count is None:
            uncounted.add(one.method)
            continue
        study = plan.study(one)
        total += 4 * count * study.clients_per_round * study.rounds
    text = f"{megabytes(total / 1e6)} by the servers to clients"
    return text + (f"; not counted: {', '.join(sorted(uncounted))}" if uncounted else "")
