"""Draw accuracies by an option of a grid (SGPT, Fig. 4 and 6b)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Several
from fedloom.config import requirements
from fedloom.config.grids import text
from fedloom.config.line_style import deal
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import AXES, accuracy, over_seeds
from fedloom.report.members import member
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class OptionLine(RunsFigure):
    """Accuracies by an option of grids (SGPT Fig. 4, 6b)."""

    shows = "grids"
    needs = (
        requirements.global_test,
        requirements.the_option,
    )
    caption = (
        "Accuracies by an option of a grid, a line per combination of its other options: mean "
        "over seeds, whiskers one sample standard deviation each way."
    )

    option: str | None = None
    """An axis that all the grids have; default: the first of each."""
    metrics: Several[AccuracyMetric] = Field(["participating_mean"])
    """Accuracies, a panel each."""
    personalized: Personalized = True


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a row per scenario and a panel per accuracy."""
    personalized = job.settings["personalized"]
    measures = {
        AXES[metric]: partial(accuracy, metric=metric, personalized=personalized)
        for metric in job.settings["metrics"]
    }
    return by_option(series, job.settings.get("option"), measures)


def by_option(
    series: list[ShownRun], option: str | None, measures: dict[str, Callable[[ShownRun], float]]
) -> style.Figure:
    """Draw numbers of runs by an axis of their grids, whiskers of one deviation over seeds.

    Args:
        option: an axis that all grids have; None: the first of each.
        measures: by the label of the y axis.
    """
    scenarios = style.scenarios(series)
    figure, axes = style.grid(len(scenarios), len(measures))
    for row, runs in zip(axes, scenarios.values(), strict=True):
        for axis, (label, measure) in zip(row, measures.items(), strict=True):
            _panel(axis, runs, option, measure)
            axis.set(ylabel=label, title=style.name(runs[0], series))
    style.legend(figure, list(axes.flat))
    return figure


def _panel(
    axis: style.Axes, runs: list[ShownRun], option: str | None, measure: Callable[[ShownRun], float]
) -> None:
    """Draw the lines of one scenario; values that are no numbers stand side by side."""
    values = list(dict.fromkeys(_name(_value(run, option)) for run in runs))
    numeric = all(isinstance(_value(run, option), int | float) for run in runs)
    lines: dict[tuple, list[ShownRun]] = {}
    grids: dict[str, dict] = {}  # the look of each one's first run
    for run in runs:
        lines.setdefault((member(run).grid, *_others(run, option).items()), []).append(run)
        grids.setdefault(member(run).grid, vars(run.look))
    several = len(grids) > 1
    looks = deal([grids[grid] for grid, *_ in lines])
    for look, points in zip(looks, lines.values(), strict=True):
        numbers = over_seeds(points, lambda run: _name(_value(run, option)), measure)
        at = [float(name) if numeric else values.index(name) for name in map(str, numbers)]
        means, stds = zip(*numbers.values(), strict=True)
        title = [member(points[0]).title] if several else []
        title += [f"{name} = {value}" for name, value in _others(points[0], option).items()]
        axis.errorbar(
            at, means, stds, capsize=2, elinewidth=0.8,
            label=style.legend_text(", ".join(title)) or None, **style.of_method(look),
        )  # fmt: skip
    if numeric:
        axis.set_xticks([float(name) for name in values], values)
    else:
        slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        axis.set_xticks(range(len(values)), values, **slanted if len(values) > 4 else {})
    axis.set_xlabel(", ".join(dict.fromkeys(_axis(run, option) for run in runs)))


def _name(value: Any) -> str:
    """Write a value as text; a list of consecutive numbers by its ends, as blocks 4 to 6."""
    numbers = value if isinstance(value, list) and all(isinstance(v, int) for v in value) else []
    if len(numbers) > 2 and numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]} to {numbers[-1]}"
    return text(value)


def _axis(run: ShownRun, option: str | None) -> str:
    """Return the axis of a run's grid that is drawn across.

    Raises:
        FedLoomError: its grid has no such axis.
    """
    axes = list(member(run).at)
    if option is None:
        return axes[0]
    if option not in axes:
        line = f"the grid {member(run).grid} has no axis '{option}'; it has {', '.join(axes)}"
        raise FedLoomError(line)
    return option


def _value(run: ShownRun, option: str | None) -> Any:
    """Return a run's value on the axis."""
    return member(run).at[_axis(run, option)]


def _others(run: ShownRun, option: str | None) -> dict[str, str]:
    """Return a run's values on the other axes of its grid."""
    drawn = _axis(run, option)
    return {name: text(value) for name, value in member(run).at.items() if name != drawn}
