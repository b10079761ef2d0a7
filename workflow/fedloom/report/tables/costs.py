"""Tabulate costs: of reaching an accuracy, of communication, and of a method's own steps."""

from typing import ClassVar

import pandas as pd

from fedloom.common.schema import Percent
from fedloom.config.output_kinds import AccuracyTable, RunsTable
from fedloom.config.settings import KindSpec
from fedloom.report.metrics import artefact, by_round, evaluation, frame
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.layout import Column
from fedloom.report.tables.units import MEGABYTES, MILLIONS, MILLISECONDS, SECONDS

# bytes of a number if no wrapper packs it
NUMBER = 4
COST_COLUMNS = {
    "rounds": Column("Rounds", higher_is_better=False, decimals=1),
    "megabytes_up": Column("Up", higher_is_better=False, units=MEGABYTES),
    "megabytes_down": Column("Down", higher_is_better=False, units=MEGABYTES),
    "million_params": Column("Params", higher_is_better=False, units=MILLIONS),
    # seconds depend on the machine and its load, so no method is marked as best
    "processor_seconds": Column("Processor time", higher_is_better=None, decimals=1, units=SECONDS),
    "params_up": Column("Sent by a client", higher_is_better=False, decimals=0),
    "params_down": Column("Sent to a client", higher_is_better=False, decimals=0),
}


class Communication(AccuracyTable):
    """Rounds, bytes, numbers and processor seconds until a mean accuracy (PEP-FedPT Table 6)."""

    target: Percent
    """Mean accuracy of the participating clients to reach, in percent."""
    column: ClassVar = COST_COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        return cost_to_target(
            evaluation(run.evaluation, self.personalized), frame(run.rounds), self.target
        )

    def describe(self, runs: list[PlottedRun]) -> str:
        return f"cost of reaching a mean test accuracy of {self.target:g} %"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        rounds = pd.concat([frame(run.rounds) for run in runs])
        ends = rounds[["threads", "cores"]].agg(["min", "max"]).astype(int).astype(str)
        threads = " to ".join(dict.fromkeys(ends["threads"]))
        cores = " to ".join(dict.fromkeys(ends["cores"]))
        return (
            "Costs are those until an evaluated round has this mean accuracy over participating "
            "clients; > marks the costs of all rounds where none has it.",
            "Up and down are the bytes that all clients send and receive.",
            "Params are the numbers of four bytes that one client would send if it took part in "
            "every round.",
            "The processor time of training is summed over threads, without a GPU's time "
            f"(threads: {threads}, cores of the machine: {cores}).",
            "Prototypes that clients send before round 1 are not counted.",
        )


def cost_to_target(
    evaluated: pd.DataFrame, rounds: pd.DataFrame, target: float
) -> dict[str, float]:
    """Sum up the costs until the first evaluated round with a mean accuracy of at least `target`.

    - `megabytes_up` and `megabytes_down` (10^6 bytes) are sums over all clients.
    - `million_params` counts the numbers of four bytes that a client would send if it took part in
      every round, in millions.
    - `<name>_above` is True if the target, in percent, was never reached. All numbers are then
      those of the last evaluated round.
    """
    # the round that reached the target, or the last one
    curve = by_round(evaluated[evaluated["participating"]])
    reached = curve.index[curve >= target]
    last = curve.index[-1]
    if len(reached):
        last = reached[0]

    # what was spent until then
    spent = rounds[rounds["round"] <= last]
    numbers = {
        "rounds": float(last),
        "megabytes_up": float(spent["bytes_up"].sum()) / 1e6,
        "megabytes_down": float(spent["bytes_down"].sum()) / 1e6,
        "million_params": float((spent["bytes_up"] / spent["clients"]).sum()) / NUMBER / 1e6,
        "processor_seconds": float(spent["processor_seconds"].sum()),
    }
    return numbers | {f"{name}_above": not len(reached) for name in numbers}


class Parameters(RunsTable):
    """Numbers that a client sends and receives in a round (SGPT Table 5).

    If a wrapper packs what clients send, four bytes of it count as one number.
    """

    column: ClassVar = COST_COLUMNS.__getitem__

    def measure(self, run: PlottedRun) -> dict[str, float]:
        return sent(run)

    def describe(self, runs: list[PlottedRun]) -> str:
        return "numbers that a client sends and receives in a round"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return (
            "A number has four bytes, and is the mean over rounds and clients.",
            "The weights of a frozen backbone are not sent.",
        )


def sent(run: PlottedRun) -> dict[str, float]:
    """Return how many numbers a client sends (`params_up`) and receives (`params_down`) in a round.

    These are means over clients and rounds.
    """
    rounds = frame(run.rounds)
    return {
        f"params_{way}": float((rounds[f"bytes_{way}"] / rounds["clients"]).mean()) / NUMBER
        for way in ("up", "down")
    }


class Timings(RunsTable):
    """Milliseconds that a method's own steps take, beside those of training (FedPHA Table 3)."""

    spec = KindSpec(artefact="timings")

    def measure(self, run: PlottedRun) -> dict[str, float]:
        """Return the mean milliseconds of each stage over repetitions, `<stage>_ms`.

        `<stage>_percent` is this mean in percent of the mean of the stage `training`.
        """
        means = artefact(run).groupby("stage", sort=False)["milliseconds"].mean()
        shares = 100 * means.drop("training") / means["training"]
        numbers = means.add_suffix("_ms").to_dict() | shares.add_suffix("_percent").to_dict()
        return {str(name): float(value) for name, value in numbers.items()}

    def column(self, metric: str) -> Column:
        stage, _, unit = metric.rpartition("_")
        name = stage.replace("_", " ").capitalize()
        # times depend on the machine, so no method is marked as best
        if unit == "ms":
            return Column(name, higher_is_better=None, units=MILLISECONDS)
        return Column(f"{name} (% of training)", higher_is_better=None)

    def describe(self, runs: list[PlottedRun]) -> str:
        return "time of a client's steps in a round"

    def explain(self, runs: list[PlottedRun]) -> tuple[str, ...]:
        return (
            "Times are means over repetitions on the machine of the job, measured after the last "
            "round.",
            "Training is the time of clients that train together, divided by their number.",
        )
