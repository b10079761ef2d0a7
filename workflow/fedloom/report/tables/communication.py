"""What it costs to reach an accuracy (PEP-FedPT, Table 6)."""

import pandas as pd

from fedloom.common.schema import Percent
from fedloom.config.output_kinds import AccuracyTable
from fedloom.report.metrics import evaluation, frame
from fedloom.report.tables.layout import Column
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

NUMBER = 4  # bytes of a number that is sent as it is
COLUMNS = {
    "rounds": Column("Rounds", higher_is_better=False, decimals=1),
    "megabytes_up": Column("Up (MB)", higher_is_better=False),
    "megabytes_down": Column("Down (MB)", higher_is_better=False),
    "million_params": Column("Params (M)", higher_is_better=False),
    # of one machine and its load, so that none is best
    "processor_seconds": Column("Processor seconds", higher_is_better=None, decimals=1),
}


class Communication(AccuracyTable):
    """Rounds, bytes and processor seconds to a mean accuracy (PEP-FedPT Table 6)."""

    caption = (
        "Rounds until the mean accuracy of the participating clients first reaches {target} "
        "%, the bytes sent and received by all clients together (in MB of 10\\ :sup:`6` "
        "bytes), the numbers of four bytes that one client would send if it took part in "
        "every round, and the processor seconds of training up to then, of all threads "
        "together and without a GPU's time. ``>``: not reached by the last round, in at least "
        "one seed."
    )

    target: Percent
    """Mean accuracy of the participating clients, in percent."""


def measure(run: ShownRun, job: TableJob) -> dict[str, float]:
    """Return what the run costs until it reaches the table's `target`, see `until`."""
    rows = evaluation(run.evaluation, job.settings["personalized"])
    return until(rows, frame(run.rounds), job.settings["target"])


def until(evaluated: pd.DataFrame, rounds: pd.DataFrame, target: float) -> dict[str, float]:
    """Find the first evaluated round whose mean accuracy is at least `target`, and add up to it.

    Args:
        target: mean over participating clients, in percent.

    Returns:
        `rounds`; `megabytes_up` and `megabytes_down` (10^6 bytes) of all clients together,
        `million_params`, the numbers (of four bytes) that a client sends which takes part in every
        round, and `processor_seconds` of training, each from round 1. `<name>_above` is true for
        all of them when the target was never reached: the numbers then belong to the last evaluated
        round.
    """
    rows = evaluated[evaluated["participating"]]
    percent = 100 * rows["num_correct"] / rows["num_test"]
    curve = percent.groupby(rows["round"]).mean().sort_index()
    reached = curve.index[curve >= target]
    last = reached[0] if len(reached) else curve.index[-1]
    spent = rounds[rounds["round"] <= last]
    numbers = {
        "rounds": float(last),
        "megabytes_up": float(spent["bytes_up"].sum()) / 1e6,
        "megabytes_down": float(spent["bytes_down"].sum()) / 1e6,
        "million_params": float((spent["bytes_up"] / spent["clients"]).sum()) / NUMBER / 1e6,
        "processor_seconds": float(spent["processor_seconds"].sum()),
    }
    return numbers | {f"{name}_above": not len(reached) for name in numbers}


def column(metric: str) -> Column:
    """Return how a metric of `until` is shown."""
    return COLUMNS[metric]


def describe(job: TableJob, runs: list[ShownRun]) -> str:
    """Say what is counted, and on what machines the processor's seconds were measured."""
    rounds = pd.concat([frame(run.rounds) for run in runs])
    threads, cores = _span(rounds["threads"], "thread"), _span(rounds["cores"], "core")
    return (
        f"cost of reaching a mean accuracy of {job.settings['target']:g} % over the participating "
        "clients, at the evaluated rounds: rounds, bytes of all clients together, numbers (of four "
        "bytes) that one client would send if it took part in every round, processor "
        f"seconds of training (of all threads together, without a GPU's time; {threads}, machine "
        f"of {cores}); > where it was not reached by the last round; prototypes sent once before "
        "round 1 are not counted"
    )


def _span(counts: pd.Series, noun: str) -> str:
    """Write smallest and largest of some counts, as "1 thread" or "2 to 4 threads"."""
    low, high = int(counts.min()), int(counts.max())
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"{number} {noun}{'s' if high > 1 else ''}"
