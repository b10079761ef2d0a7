"""Draw accuracies of methods by partition, by shots, or one against another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import pandas as pd
from pydantic import model_validator

from fedloom.common.errors import FedLoomError
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure, RunsTable
from fedloom.config.settings import Output, Settings
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.report.figures.columns import side_by_side
from fedloom.report.tables import unseen
from fedloom.study.plot_inputs import PlottedRun

AXES = {
    "participating_mean": "Mean accuracy (%)",
    "participating_worst": "Worst client's accuracy (%)",
    "held_out_mean": "Held-out mean accuracy (%)",
    "held_out_worst": "Held-out worst accuracy (%)",
    "global": "Global accuracy (%)",
}
TABLES: dict[str, Any] = {
    "partition": RunsTable,
    "base_to_novel": unseen.BaseToNovel,
    "cross_dataset": unseen.CrossDataset,
}


class AccuracyBars(RunsFigure):
    """Accuracies by partition, or the columns of a table, methods side by side (PFPT Fig. 1).

    Mean over seeds, whiskers one sample standard deviation each way. The axis may begin above zero;
    the lowest bar is then at least half as long as the highest.
    """

    requires = (requirements.global_test,)

    by: Literal["partition", "base_to_novel", "cross_dataset"] = "partition"
    """A bar per partition, or per column of the table of this kind."""
    metric: AccuracyMetric = "participating_mean"
    """The accuracy by partition."""
    personalized: Personalized = True

    @model_validator(mode="after")
    def _reads_accuracies_by_partition(self) -> Self:
        chosen = self.metric != "participating_mean" or not self.personalized
        if chosen and self.by != "partition":
            raise ValueError("metric and personalized need by: partition; leave them out")
        return self

    artefact_name: ClassVar[Any] = property(lambda self: TABLES[self.by].artefact_name)
    partition_key: ClassVar[Any] = property(lambda self: TABLES[self.by].partition_key)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per dataset and backbone, or per scenario, all with the same limits."""
        bars, table, keys, label = [], TABLES[self.by](), style.BACKBONE, AXES[self.metric]
        if self.by != "partition":
            keys, label = metrics.SCENARIO, "Test accuracy (%)"
        one_grid = len({run.partition.partition(".")[0] for run in series}) == 1

        def numbers(run: PlottedRun) -> pd.Series:
            if self.by != "partition":
                return pd.Series({table.column(k).title: v for k, v in table.measure(run).items()})
            member = run.partition.partition(".")[2] if one_grid else ""
            number = accuracy(run, self.metric, self.personalized)
            return pd.Series({member or run.partition: number})

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            bars.append(side_by_side(axis, runs, numbers))

        figure = style.by_scenario(series, panel, label, keys)
        for axis in figure.axes:
            axis.set_ylim(limits(pd.concat(bars)))
        return figure


def limits(frame: pd.DataFrame) -> tuple[float, float]:
    """Return where the axis of accuracies `mean` +- `std` begins and ends, in percent.

    It begins at a multiple of ten that leaves the lowest bar at least half as long as the highest.
    """
    std = frame["std"].fillna(0)
    low, high = float((frame["mean"] - std).min()), float((frame["mean"] + std).max())
    begin = max(0, (low - max(high - low, 5)) // 10 * 10)
    return begin, min(103, high + 0.05 * (high - begin))


class TwoMetrics(RunsFigure):
    """One accuracy against another, one point per method (SGPT Fig. 1).

    Mean over seeds, whiskers one sample standard deviation each way.
    """

    requires = (requirements.global_test,)

    x: AccuracyMetric = "global"
    """Accuracy drawn across."""
    y: AccuracyMetric = "participating_worst"
    """Accuracy drawn up."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario."""
        names = [self.x, self.y]

        def numbers(run: PlottedRun) -> pd.Series:
            return pd.Series({name: accuracy(run, name, self.personalized) for name in names})

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            for of_method in metrics.grouped(runs, ["method"]).values():
                point = metrics.over_seeds(of_method, numbers).loc[names]
                look = style.of_run(of_method[0])
                look |= {"linestyle": "", "markersize": 7, "elinewidth": 0.8, "capsize": 2}
                (across, up), (wide, high) = point["mean"], point["std"]
                axis.errorbar([across], [up], [high], [wide], **look)
            axis.set_xlabel(AXES[self.x])

        return style.by_scenario(series, panel, AXES[self.y])


class Shots(RunsFigure):
    """Accuracy by the partitions' shots, one line per method (FedPHA Fig. 3).

    Mean accuracy of the participating clients at the reported rounds, by training images per class:
    mean over seeds, bars one sample standard deviation each way.
    """

    requires = (requirements.different_shots,)

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the output with the shots of every partition."""
        labels = dict.fromkeys(scenario.partition for scenario in output.scenarios)
        shots = {label: settings.partitions[label].settings["shots"] for label in labels}
        return replace(output, extra=output.extra | {"shots": shots})

    def draw(self, series: list[PlottedRun], shots: dict[str, int]) -> style.Figure:
        """Draw a panel per dataset and backbone."""
        ticks = sorted(shots.values())

        def number(run: PlottedRun) -> pd.Series:
            return pd.Series({shots[run.partition]: accuracy(run)})

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            for of_method in metrics.grouped(runs, ["method"]).values():
                band = metrics.over_seeds(of_method, number).sort_index()
                look = style.of_run(of_method[0]) | {"capsize": 2.5, "elinewidth": 1}
                axis.errorbar(band.index, band["mean"], band["std"], **look)
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, map(str, ticks))
            axis.minorticks_off()
            axis.set_xlabel("Shots (training images per class)")

        return style.by_scenario(series, panel, "Test accuracy (%)", style.BACKBONE)


def accuracy(
    run: PlottedRun, metric: str = "participating_mean", personalized: bool = True
) -> float:
    """Return an accuracy of a run in percent at its reported rounds, see `metrics.accuracies`.

    Raises:
        FedLoomError: the run does not have it, as `held_out_mean` without clients held out.
    """
    numbers = metrics.accuracies(metrics.evaluation(run.evaluation, personalized), run.reported)
    if metric not in numbers:
        known = ", ".join(numbers)
        raise FedLoomError(f"{run.evaluation}: no {metric} there; it has {known}")
    return numbers[metric]
