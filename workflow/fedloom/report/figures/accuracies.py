"""Draw accuracies of methods: by partition, shots or an option, or one accuracy against another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import pandas as pd
from pydantic import Field, model_validator

from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Several
from fedloom.config.grids import value_text
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure, RunsTable
from fedloom.config.settings import KindSpec, OutputEntry, Settings
from fedloom.report import metrics, requirements
from fedloom.report.figures import style
from fedloom.report.figures.convergence import side_by_side
from fedloom.report.metrics import axis_title, grouped, member, over_seeds
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables import clustering
from fedloom.report.tables.accuracy import BaseToNovel, CrossDataset

Measure = Callable[[PlottedRun], float]
ACCURACY_AXES = {
    "participating_mean": "Mean accuracy (%)",
    "participating_worst": "Worst client's accuracy (%)",
    "held_out_mean": "Held-out mean accuracy (%)",
    "held_out_worst": "Held-out worst accuracy (%)",
    "global": "Global accuracy (%)",
}
TABLE_OF_KIND: dict[str, Any] = {
    "partition": RunsTable,
    "base_to_novel": BaseToNovel,
    "cross_dataset": CrossDataset,
}


class AccuracyBars(RunsFigure):
    """Accuracies by partition, or those in the columns of a table, as bars (PFPT Fig. 1).

    The bars of methods stand side by side. They are means over seeds, and whiskers reach one
    sample standard deviation to each side.
    """

    spec = KindSpec(requires=(requirements.global_test, requirements.held_out_metrics))

    by: Literal["partition", "base_to_novel", "cross_dataset"] = "partition"
    """Groups of bars: one for each `partition`, or for each column of the table of this kind."""
    metric: AccuracyMetric = "participating_mean"
    """Accuracy to show by partition: the mean or the worst over participating or held-out clients,
    or `global`, on all test images (needs `study.global_test`)."""
    personalized: Personalized = True

    @model_validator(mode="after")
    def _reads_accuracies_by_partition(self) -> Self:
        chosen = self.metric != "participating_mean" or not self.personalized
        if chosen and self.by != "partition":
            raise ValueError("metric and personalized need by: partition; leave them out")
        return self

    def needs(self) -> KindSpec:
        """Return what the kind needs: what the table named in `by` needs."""
        table = TABLE_OF_KIND[self.by].spec
        return replace(self.spec, artefact=table.artefact, partition_key=table.partition_key)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            side_by_side(axis, runs, self.numbers)
            axis.set_ylim(0, 103)

        # bars by partition are in one panel
        keys: tuple[str, ...] = metrics.SCENARIO
        if self.by == "partition":
            keys = style.BACKBONE
        return style.by_scenario(series, panel, ACCURACY_AXES[self.metric], keys)

    def numbers(self, run: PlottedRun) -> pd.Series:
        """Return the accuracies of a run, indexed by the labels of their bars."""
        if self.by == "partition":
            return pd.Series({run.partition: accuracy(run, self.metric, self.personalized)})
        table = TABLE_OF_KIND[self.by]()
        return pd.Series({table.column(k).title: v for k, v in table.measure(run).items()})


class TwoMetrics(RunsFigure):
    """One accuracy against another, one point per method (SGPT Fig. 1).

    Points are means over seeds, and whiskers reach one sample standard deviation to each side.
    """

    spec = KindSpec(requires=(requirements.global_test, requirements.held_out_metrics))

    x: AccuracyMetric = "global"
    """Accuracy on the x axis: the mean or the worst over participating or held-out clients, or
    `global`, on all test images (needs `study.global_test`)."""
    y: AccuracyMetric = "participating_worst"
    """Accuracy on the y axis; it may have the same values as `x`."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        names = [self.x, self.y]

        def numbers(run: PlottedRun) -> pd.Series:
            return pd.Series({name: accuracy(run, name, self.personalized) for name in names})

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            for method_runs in grouped(runs, ["method"]).values():
                point = over_seeds(method_runs, numbers).loc[names]
                (across, up), (wide, high) = point["mean"], point["std"]
                look: style.Keywords = style.of_run(method_runs[0]) | {"linestyle": ""}
                axis.errorbar([across], [up], [high], [wide], **look)
            axis.set_xlabel(ACCURACY_AXES[self.x])

        return style.by_scenario(series, panel, ACCURACY_AXES[self.y])


class Shots(RunsFigure):
    """Accuracy by the partitions' shots, one line per method (FedPHA Fig. 3).

    Shots are the training images per class. The accuracy is the mean over participating clients at
    the reported rounds. Points are means over seeds, and whiskers reach one sample standard
    deviation to each side.
    """

    def complete(self, settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
        """Return the output with the number of shots of every partition.

        Raises a FedLoomError if a partition has no shots, or if two have the same number.
        """
        labels = dict.fromkeys(scenario.partition for scenario in output.scenarios)
        shots = {label: settings.partitions[label].settings.get("shots") for label in labels}

        if None in shots.values() or len({*shots.values()}) < len(shots):
            each = ", ".join(f"partitions.{label} {number}" for label, number in shots.items())
            raise where.error(
                f"each partition must have its own number of shots, got {each}; set them, run "
                "fewer, or leave the figure out"
            )
        return replace(output, extra=output.extra | {"shots": shots})

    def draw(self, series: list[PlottedRun], shots: dict[str, int]) -> style.Figure:
        ticks = sorted(shots.values())

        def number(run: PlottedRun) -> pd.Series:
            return pd.Series({shots[run.partition]: accuracy(run)})

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            for method_runs in grouped(runs, ["method"]).values():
                band = over_seeds(method_runs, number).sort_index()
                axis.errorbar(band.index, band["mean"], band["std"], **style.of_run(method_runs[0]))
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, map(str, ticks))
            axis.set_xlabel("Shots (training images per class)")

        return style.by_scenario(series, panel, "Test accuracy (%)", style.BACKBONE)


class OptionLine(RunsFigure):
    """Accuracy by the values of one option of grids (SGPT Fig. 4, 6b).

    There is a line per combination of the other options. Points are means over seeds, and whiskers
    reach one sample standard deviation to each side.
    """

    spec = KindSpec(
        shows="grids",
        requires=(
            requirements.global_test,
            requirements.held_out_metrics,
            requirements.the_option,
        ),
    )

    option: str | None = None
    """The axis of the grids that is shown, which all of them must have. Default: the first axis of
    each grid."""
    metrics: Several[AccuracyMetric] = Field(["participating_mean"])
    """Accuracies to show, each in its own panel: the mean or the worst over participating or
    held-out clients, or `global`, on all test images (needs `study.global_test`)."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        measures = measures_by_title(self.metrics, self.personalized)
        return _draw_by_option(series, self.option, measures)


class Congruence(RunsFigure):
    """Agreement of groups of images with centralised k-means (SGPT Fig. 6a).

    The overlap of the training images' groups with clusters of centralised k-means is divided by
    the share of images that k-means puts into the cluster with most images of their class. Points
    are means over seeds, and whiskers reach one sample standard deviation to each side.
    """

    spec = KindSpec(shows="grids", artefact="groups", requires=(requirements.the_option,))

    option: str | None = None
    """The axis of the grids that is shown, which all of them must have. Default: the first axis of
    each grid."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        return _draw_by_option(series, self.option, {"Congruence (%)": congruence_of_run})


def congruence_of_run(run: PlottedRun) -> float:
    """Return the congruence of a run's groups of training images in %; see tables/clustering.py."""
    images = metrics.artefact(run)
    train = images[~images["test"]]
    return clustering.congruence(train["group"], train["cluster"], train["class"])


def _draw_by_option(
    series: list[PlottedRun], option: str | None, measures: dict[str, Measure]
) -> style.Figure:
    """Draw a row of panels per scenario, and in it a panel per measure.

    The x axis of a panel is the axis `option` of the grids; None: the first axis of each grid.
    """
    scenarios = grouped(series)
    figure, axes = style.grid(len(scenarios), len(measures))
    for row, runs in zip(axes, scenarios.values(), strict=True):
        for axis, (label, measure) in zip(row, measures.items(), strict=True):
            _panel(axis, runs, option, measure)
            axis.set(ylabel=label, title=style.name(runs[0], series))
    style.legend(figure, list(axes.flat))
    return figure


def _panel(axis: style.Axes, runs: list[PlottedRun], option: str | None, measure: Measure) -> None:
    """Draw a line per combination of the other options.

    The x axis has the values of the axis `option` of the grids. If they are text, they are evenly
    spaced.
    """

    def across(run: PlottedRun) -> str:
        return option or next(iter(member(run).at))

    def value(run: PlottedRun) -> Any:
        return member(run).at[across(run)]

    # where each value lies on the axis
    values = {value_text(value(run)): value(run) for run in runs}
    numeric = all(isinstance(each, int | float) for each in values.values())
    places = values
    if not numeric:
        places = {name: place for place, name in enumerate(values)}

    # the runs of each line, by the other options, and by the grid if there are several
    several = len({member(run).grid for run in runs}) > 1
    lines: dict[tuple[str, str], list[PlottedRun]] = {}
    for run in runs:
        at = member(run).at
        others = [name for name in at if name != across(run)]
        parts = [f"{axis_title(run, name)} = {value_text(at[name])}" for name in others]
        if several:
            parts.insert(0, member(run).title)
        lines.setdefault((member(run).grid, ", ".join(parts)), []).append(run)

    for (_, label), points in lines.items():
        band = over_seeds(
            points, lambda run: pd.Series({places[value_text(value(run))]: measure(run)})
        )
        look: style.Keywords = style.of_run(points[0]) | {"label": style.legend_text(label)}
        axis.errorbar(band.index, band["mean"], band["std"], **look)

    # many words are slanted
    look = {}
    if not numeric and len(values) > 4:
        look = style.SLANTED
    axis.set_xticks(list(places.values()), list(values), **look)
    titles = [axis_title(run, across(run)) for run in runs]
    axis.set_xlabel(", ".join(dict.fromkeys(titles)))


def measures_by_title(metrics: Sequence[str], personalized: bool) -> dict[str, Measure]:
    """Return, by the title of its axis, the function that measures each of these accuracies."""
    return {
        ACCURACY_AXES[metric]: partial(accuracy, metric=metric, personalized=personalized)
        for metric in metrics
    }


def accuracy(
    run: PlottedRun, metric: str = "participating_mean", personalized: bool = True
) -> float:
    """Return an accuracy of a run in percent at its reported rounds (see `metrics.accuracies`).

    Raises a FedLoomError if the run does not have it.
    """
    numbers = metrics.accuracies(metrics.evaluation(run.evaluation, personalized), run.reported)
    if metric not in numbers:
        raise FedLoomError(f"{run.evaluation}: must have {metric}, got only {', '.join(numbers)}")
    return numbers[metric]
