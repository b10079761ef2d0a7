"""Draw numbers of runs by an option of their grids."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
from pydantic import Field

from fedloom.common.schema import Several
from fedloom.config.grids import text
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.report import requirements
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import AXES, accuracy
from fedloom.report.figures.line_style import deal
from fedloom.report.metrics import artefact, grouped, member, over_seeds
from fedloom.report.tables import clustering
from fedloom.study.plot_inputs import PlottedRun

Measure = Callable[[PlottedRun], float]


class OptionLine(RunsFigure):
    """Accuracies by an option of grids (SGPT Fig. 4, 6b).

    A line per combination of the other options: mean over seeds, whiskers one sample standard
    deviation each way.
    """

    shows = "grids"
    requires = (requirements.global_test, requirements.the_option)

    option: str | None = None
    """An axis that all the grids have; default: the first of each."""
    metrics: Several[AccuracyMetric] = Field(["participating_mean"])
    """Accuracies, a panel each."""
    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a row per scenario and a panel per accuracy."""
        measures = {
            AXES[metric]: partial(accuracy, metric=metric, personalized=self.personalized)
            for metric in self.metrics
        }
        return by_option(series, self.option, measures)


class Congruence(RunsFigure):
    """Agreement of groups of images with centralised k-means (SGPT Fig. 6a).

    Overlap of the training images' groups with centralised k-means, over the share of images that
    k-means keeps with most of their class: mean over seeds, whiskers one sample standard deviation
    each way.
    """

    shows = "grids"
    artefact_name = "groups"
    requires = (requirements.the_option,)

    option: str | None = None
    """An axis that all the grids have; default: the first of each."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per scenario."""
        return by_option(series, self.option, {"Congruence (%)": congruence})


def congruence(run: PlottedRun) -> float:
    """Return the congruence of a run's groups of training images in %, see the table's."""
    images = artefact(run)
    train = images[~images["test"]]
    return clustering.congruence(train["group"], train["cluster"], train["class"])


def by_option(
    series: list[PlottedRun], option: str | None, measures: dict[str, Measure]
) -> style.Figure:
    """Draw numbers of runs by an axis of their grids, whiskers of one deviation over seeds.

    Args:
        option: an axis that all grids have; None: the first of each.
        measures: by the label of the y axis.
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
    """Draw a line per combination of the other options; values that are text are evenly spaced."""

    def across(run: PlottedRun) -> str:
        return option or next(iter(member(run).at))

    def value(run: PlottedRun) -> Any:
        return member(run).at[across(run)]

    def others(run: PlottedRun) -> dict[str, str]:
        at = member(run).at
        return {name: text(at[name]) for name in at if name != across(run)}

    names = list(dict.fromkeys(_name(value(run)) for run in runs))
    numeric = all(isinstance(value(run), int | float) for run in runs)
    lines: dict[tuple, list[PlottedRun]] = {}
    grids: dict[str, dict] = {}  # the line style of each one's first run
    for run in runs:
        lines.setdefault((member(run).grid, *others(run).items()), []).append(run)
        grids.setdefault(member(run).grid, vars(run.style))
    styles = deal([grids[grid] for grid, *_ in lines])
    for line_style, points in zip(styles, lines.values(), strict=True):
        band = over_seeds(points, lambda run: pd.Series({_name(value(run)): measure(run)}))
        at = [float(name) if numeric else names.index(name) for name in band.index]
        title = [member(points[0]).title] if len(grids) > 1 else []
        title += [f"{name} = {other}" for name, other in others(points[0]).items()]
        axis.errorbar(
            at, band["mean"], band["std"], capsize=2, elinewidth=0.8,
            label=style.legend_text(", ".join(title)) or None, **style.of_method(line_style),
        )  # fmt: skip
    if numeric:
        axis.set_xticks([float(name) for name in names], names)
    else:
        axis.set_xticks(range(len(names)), names, **style.SLANTED if len(names) > 4 else {})
    axis.set_xlabel(", ".join(dict.fromkeys(map(across, runs))))


def _name(value: Any) -> str:
    """Write a value as text; a list of consecutive numbers by its ends, as blocks 4 to 6."""
    numbers = value if isinstance(value, list) and all(isinstance(v, int) for v in value) else []
    if len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]} to {numbers[-1]}"
    return text(value)
