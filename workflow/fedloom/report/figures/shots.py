"""Draw accuracy by the number of training images per class (FedPHA, Fig. 3)."""

from __future__ import annotations

import pandas as pd

from fedloom.config import requirements
from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

PANEL = ("dataset", "backbone")  # a panel is one of each


class Shots(RunsFigure):
    """Accuracy by the partitions' shots, one line per method (FedPHA Fig. 3)."""

    needs = (requirements.different_shots,)
    caption = (
        "Mean accuracy of the participating clients at the reported rounds, by training "
        "images per class: mean over seeds, bars one sample standard deviation each way."
    )


def curves(series: list[ShownRun], job: FigureJob) -> dict[str, pd.DataFrame]:
    """Return mean and sample standard deviation over seeds (NaN of one seed), by method and shots.

    The number of a seed is the mean accuracy over participating clients in percent, averaged over
    the reported rounds.
    """
    records = [
        (
            run.method,
            job.shots[run.partition],
            metrics.accuracies(metrics.evaluation(run.evaluation), run.reported),
        )
        for run in series
    ]
    frame = pd.DataFrame(
        [(method, shots, numbers["participating_mean"]) for method, shots, numbers in records],
        columns=["method", "shots", "accuracy"],
    )
    return {
        str(method): rows.groupby("shots")["accuracy"].agg(["mean", "std"])
        for method, rows in frame.groupby("method", sort=False)
    }


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per dataset and backbone, a line per method, bars of one standard deviation."""
    panels = style.scenarios(series, PANEL)
    figure, axes = style.panels(len(panels))
    for axis, runs in zip(axes, panels.values(), strict=True):
        shown = {run.method: run for run in runs}
        for method, curve in curves(runs, job).items():
            look = style.of_method(shown[method].look)
            axis.errorbar(
                curve.index, curve["mean"], curve["std"],
                label=style.legend_text(shown[method].title), capsize=2.5, elinewidth=1, **look,
            )  # fmt: skip
        shots = sorted(job.shots.values())
        axis.set_xscale("log", base=2)
        axis.set_xticks(shots, map(str, shots))
        axis.minorticks_off()
        axis.set(
            xlabel="Shots (training images per class)", title=style.name(runs[0], series, PANEL)
        )
    style.left_label(axes, "Test accuracy (%)")
    style.legend(figure, axes)
    return figure
