"""Draw one accuracy against another, a point per method (SGPT, Fig. 1)."""

from __future__ import annotations

from typing import Any

from fedloom.config import requirements
from fedloom.config.output_kinds import AccuracyMetric, Personalized, RunsFigure
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import AXES, accuracy, over_seeds
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class TwoMetrics(RunsFigure):
    """One accuracy against another, one point per method (SGPT Fig. 1)."""

    needs = (requirements.global_test,)
    caption = (
        "{y} against {x} in percent, a point per method: mean over seeds, whiskers one sample "
        "standard deviation each way."
    )

    x: AccuracyMetric = "global"
    """Accuracy drawn across."""
    y: AccuracyMetric = "participating_worst"
    """Accuracy drawn up."""
    personalized: Personalized = True


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per scenario; whiskers are one standard deviation over seeds each way."""
    names, personalized = (job.settings["x"], job.settings["y"]), job.settings["personalized"]
    groups = style.scenarios(series)
    figure, axes = style.panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        x, y = (
            over_seeds(
                runs,
                lambda run: run.method,
                lambda run, name=name: accuracy(run, name, personalized),
            )
            for name in names
        )
        for run in {run.method: run for run in runs}.values():
            (across, wide), (up, high) = x[run.method], y[run.method]
            look: dict[str, Any] = style.of_method(run.look) | {"linestyle": "", "markersize": 7}
            axis.errorbar(
                [across], [up], [high], [wide], elinewidth=0.8, capsize=2,
                label=style.legend_text(run.title), **look,
            )  # fmt: skip
        axis.set(xlabel=AXES[names[0]], title=style.name(runs[0], series))
    style.left_label(axes, AXES[names[1]])
    style.legend(figure, axes)
    return figure
