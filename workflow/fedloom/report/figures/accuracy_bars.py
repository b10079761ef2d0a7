"""Draw an accuracy by partition as bars, the methods side by side (PFPT, Fig. 1)."""

import numpy as np
from matplotlib.figure import Figure

from fedloom.plan.jobs import FigureJob
from fedloom.plan.shown import ShownRun
from fedloom.report.figures import style
from fedloom.report.figures.accuracies import AXES, accuracy, over_seeds
from fedloom.report.figures.bars import WIDTH

PANEL = ("dataset", "backbone")


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a panel per dataset and backbone; whiskers are one standard deviation over seeds."""
    metric, personalized = job.settings["metric"], job.settings["personalized"]
    groups = style.scenarios(series, PANEL)
    figure, axes = style.panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        numbers = over_seeds(
            runs,
            lambda run: (run.method, run.partition),
            lambda run: accuracy(run, metric, personalized),
        )
        partitions = list(dict.fromkeys(run.partition for run in runs))
        methods = {run.method: run for run in runs}
        width = WIDTH / len(methods)
        for number, (label, run) in enumerate(methods.items()):
            means, stds = zip(*(numbers[label, each] for each in partitions), strict=True)
            left = np.arange(len(partitions)) - WIDTH / 2 + (number + 0.5) * width
            axis.bar(
                left, means, width, yerr=stds, label=style.legend_text(run.title),
                color=run.look.colour, hatch=run.look.line * "/", edgecolor="white", capsize=2,
            )  # fmt: skip
        axis.set_xticks(range(len(partitions)), partitions)
        axis.set(ylim=(0, 103), title=style.name(runs[0], series, PANEL))
    style.left_label(axes, AXES[metric])
    style.legend(figure, axes)
    return figure
