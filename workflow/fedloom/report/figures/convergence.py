"""Draw accuracy or loss by round (PEP-FedPT, Fig. 3, 6 and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import pandas as pd

from fedloom.common.ids import SERVER_MODEL
from fedloom.config import requirements
from fedloom.config.output_kinds import Personalized, RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.report.figures.curves import bands, lines
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

AXES = {
    "accuracy": "Test accuracy (%)",
    "global": "Global test accuracy (%)",
    "loss": "Training loss",
}


class Convergence(RunsFigure):
    """A metric by round, one line per method (PEP-FedPT Fig. 3, 6, 11)."""

    needs = (requirements.global_test,)
    caption = (
        "By round, {metric}: test accuracy as the mean over participating clients; global "
        "accuracy on all test images, of the server's model or, where a method has none, of "
        "every participating client's own; or training loss (log scale). Mean over seeds, the "
        "band one sample standard deviation wide each way."
    )

    metric: Literal["accuracy", "global", "loss"] = "accuracy"
    """Test accuracy over participating clients, or on all test images (study.global_test), or
    training loss."""
    personalized: Personalized = True


def curve(run: ShownRun, metric: str, personalized: bool = True) -> pd.Series:
    """Return a metric of one run by round.

    Args:
        metric: `accuracy`, the mean over participating clients in percent, at the evaluated rounds;
            `global`, the accuracy on all test images; `loss`, the training loss of every round.
    """
    if metric == "loss":
        return metrics.frame(run.rounds).set_index("round")["train_loss"]
    rows = metrics.evaluation(run.evaluation, personalized)
    rows = rows[rows["client_id"] == SERVER_MODEL if metric == "global" else rows["participating"]]
    return (100 * rows["num_correct"] / rows["num_test"]).groupby(rows["round"]).mean()


def clients_shown(runs: Sequence[ShownRun]) -> str:
    """Return what the axis adds where rounds show some of the participating clients, or nothing."""
    pairs: set[tuple[int, int]] = set()
    for run in runs:
        rows = metrics.frame(run.evaluation)
        counts = rows[rows["participating"]].groupby("round")["client_id"].nunique()
        pairs.add((counts.min(), counts.max()))
    words = [f"{few:,} of {everyone:,}" for few, everyone in sorted(pairs) if few < everyone]
    return f"\n({' or '.join(words)} clients; all in reported rounds)" if words else ""


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per scenario."""
    metric, groups = job.settings["metric"], style.scenarios(series)
    of = partial(curve, personalized=job.settings["personalized"])
    figure, axes = style.panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        lines(axis, runs, bands(runs, metric, of), log=metric == "loss")
        axis.set_title(style.name(runs[0], series))
    shown = clients_shown(series) if metric == "accuracy" else ""
    style.left_label(axes, AXES[metric] + shown)
    style.legend(figure, axes)
    return figure
