"""Draw accuracies of methods by partition, by shots, or one against another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.config.settings import Output, Settings
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.report.figures.columns import side_by_side
from fedloom.study.plot_inputs import ShownRun

AXES = {
    "participating_mean": "Mean accuracy (%)",
    "participating_worst": "Worst client's accuracy (%)",
    "held_out_mean": "Held-out mean accuracy (%)",
    "held_out_worst": "Held-out worst accuracy (%)",
    "global": "Global accuracy (%)",
}


class AccuracyBars(RunsFigure):
    """An accuracy by partition as bars, the methods side by side (PFPT Fig. 1)."""

    requires = (requirements.global_test,)
    caption = (
        "{metric} in percent by partition: mean over seeds, whiskers one sample standard "
        "deviation each way. The axis may begin above zero; the lowest bar is then at least "
        "half as long as the highest."
    )

    metric: AccuracyMetric = "participating_mean"
    """The accuracy."""
    personalized: Personalized = True

    def draw(self, series: list[ShownRun]) -> style.Figure:
        """Draw a panel per dataset and backbone, all with the same limits."""
        frames = []

        def panel(axis: style.Axes, runs: list[ShownRun]) -> None:
            numbers = over_seeds(
                runs,
                lambda run: (run.method, run.partition),
                lambda run: accuracy(run, self.metric, self.personalized),
            )
            index = pd.MultiIndex.from_tuples(numbers)  # pyright: ignore[reportArgumentType]
            frames.append(pd.DataFrame(list(numbers.values()), index, ["mean", "std"]))
            side_by_side(axis, runs, frames[-1])

        figure = style.by_scenario(series, panel, AXES[self.metric], style.BACKBONE)
        for axis in figure.axes:
            axis.set_ylim(limits(pd.concat(frames)))
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
    """One accuracy against another, one point per method (SGPT Fig. 1)."""

    requires = (requirements.global_test,)
    caption = (
        "{y} against {x} in percent, a point per method: mean over seeds, whiskers one sample "
        "standard deviation each way."
    )

    x: AccuracyMetric = "global"
    """Accuracy drawn across."""
    y: AccuracyMetric = "participating_worst"
    """Accuracy drawn up."""
    personalized: Personalized = True

    def draw(self, series: list[ShownRun]) -> style.Figure:
        """Draw a panel per scenario."""

        def panel(axis: style.Axes, runs: list[ShownRun]) -> None:
            x, y = (
                over_seeds(
                    runs,
                    lambda run: run.method,
                    lambda run, name=name: accuracy(run, name, self.personalized),
                )
                for name in (self.x, self.y)
            )
            for run in {run.method: run for run in runs}.values():
                (across, wide), (up, high) = x[run.method], y[run.method]
                look: dict[str, Any] = style.of_method(run.style)
                look |= {"linestyle": "", "markersize": 7, "elinewidth": 0.8, "capsize": 2}
                label = style.legend_text(run.title)
                axis.errorbar([across], [up], [high], [wide], label=label, **look)
            axis.set_xlabel(AXES[self.x])

        return style.by_scenario(series, panel, AXES[self.y])


class Shots(RunsFigure):
    """Accuracy by the partitions' shots, one line per method (FedPHA Fig. 3)."""

    requires = (requirements.different_shots,)
    caption = (
        "Mean accuracy of the participating clients at the reported rounds, by training "
        "images per class: mean over seeds, bars one sample standard deviation each way."
    )

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the output with the shots of every partition."""
        labels = dict.fromkeys(scenario.partition for scenario in output.scenarios)
        shots = {label: settings.partitions[label].settings["shots"] for label in labels}
        return replace(output, extra=output.extra | {"shots": shots})

    def draw(self, series: list[ShownRun], shots: dict[str, int]) -> style.Figure:
        """Draw a panel per dataset and backbone."""
        ticks = sorted(shots.values())

        def panel(axis: style.Axes, runs: list[ShownRun]) -> None:
            for run in {run.method: run for run in runs}.values():
                means = over_seeds(
                    [each for each in runs if each.method == run.method],
                    lambda run: shots[run.partition],
                    accuracy,
                )
                at = [each for each in ticks if each in means]
                mean, std = zip(*(means[each] for each in at), strict=True)
                look = style.of_method(run.style) | {"capsize": 2.5, "elinewidth": 1}
                axis.errorbar(at, mean, std, label=style.legend_text(run.title), **look)
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, map(str, ticks))
            axis.minorticks_off()
            axis.set_xlabel("Shots (training images per class)")

        return style.by_scenario(series, panel, "Test accuracy (%)", style.BACKBONE)


def accuracy(run: ShownRun, metric: str = "participating_mean", personalized: bool = True) -> float:
    """Return an accuracy of a run in percent at its reported rounds, see `metrics.accuracies`.

    Raises:
        FedLoomError: the run does not have it, as `held_out_mean` without clients held out.
    """
    numbers = metrics.accuracies(metrics.evaluation(run.evaluation, personalized), run.reported)
    if metric not in numbers:
        known = ", ".join(numbers)
        raise FedLoomError(f"{run.evaluation}: no {metric} there; it has {known}")
    return numbers[metric]


def over_seeds(
    series: Sequence[ShownRun],
    key: Callable[[ShownRun], Hashable],
    measure: Callable[[ShownRun], float],
) -> dict[Hashable, tuple[float, float]]:
    """Return mean and sample standard deviation (NaN of one seed) of a number, by the runs' key."""
    values: dict[Hashable, list[float]] = {}
    for run in series:
        values.setdefault(key(run), []).append(measure(run))
    return {
        name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else np.nan)
        for name, v in values.items()
    }
