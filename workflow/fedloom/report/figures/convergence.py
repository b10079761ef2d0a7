"""Accuracy or loss by round (PEP-FedPT, Fig. 3, 6 and 11)."""

import pandas as pd
from matplotlib.figure import Figure

from fedloom.evaluation import metrics
from fedloom.report.figures import style

AXES = {"accuracy": "Test accuracy (%)", "loss": "Training loss"}


def curve(run: dict, metric: str) -> pd.Series:
    """One run's metric by round.

    `accuracy`: mean over participating clients in percent, at the evaluated rounds; `loss`: the
    training loss of every round.
    """
    if metric == "loss":
        return metrics.frame(run["rounds"]).set_index("round")["train_loss"]
    rows = metrics.frame(run["evaluation"])
    rows = rows[rows["participating"]]
    return (100 * rows["num_correct"] / rows["num_test"]).groupby(rows["round"]).mean()


def bands(series: list[dict], metric: str) -> dict[str, pd.DataFrame]:
    """Mean and sample standard deviation (0 for one seed) over seeds, by method label and round."""
    methods: dict[str, list] = {}
    for run in series:
        methods.setdefault(run["method"], []).append(curve(run, metric))
    return {
        method: pd.concat(curves, axis=1).agg(["mean", "std"], axis=1).fillna({"std": 0})
        for method, curves in methods.items()
    }


def draw(series: list[dict], entry: dict) -> Figure:
    """A panel per setting, a line per method, the band one standard deviation wide each way."""
    metric, groups = entry["metric"], style.settings(series)
    figure, axes = style.panels(len(groups))
    for axis, runs in zip(axes, groups.values(), strict=True):
        about = {run["method"]: run for run in runs}
        for method, band in bands(runs, metric).items():
            look = style.of_method(about[method]["style"])
            every = max(1, len(band) // 10)
            axis.plot(
                band.index, band["mean"], label=about[method]["title"], markevery=every, **look
            )
            low, high = band["mean"] - band["std"], band["mean"] + band["std"]
            if metric == "loss":  # drawn on a log scale
                low = low.clip(lower=band["mean"] / 10)
            axis.fill_between(band.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
        if metric == "loss":
            style.log_scale(axis)
        style.whole_numbers(axis)
        axis.set(xlabel="Round", title=style.name(runs[0], series))
    style.left_label(axes, AXES[metric])
    style.legend(figure, axes)
    return figure
