"""How many clients reach an accuracy."""

from __future__ import annotations

import numpy as np

from fedloom.report.output_toolbox import Personalized, PlottedRun, RunsFigure, metrics, style


class Reach(RunsFigure):
    """The share of participating clients that reach a test accuracy, one line per method.

    A client's accuracy is its mean over the reported rounds. The clients of all seeds are counted
    together.
    """

    personalized: Personalized = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel for each scenario."""

        def panel(axis: style.Axes, runs: list[PlottedRun]) -> None:
            """Draw a line for each method; all runs are of one scenario."""
            for of_method in metrics.grouped(runs, ["method"]).values():
                reached = np.sort(np.concatenate([self.accuracies(run) for run in of_method]))
                shares = 100 * np.arange(len(reached), 0, -1) / len(reached)
                axis.step(reached, shares, **style.of_run(of_method[0]))
            axis.set_xlabel("Test accuracy (%)")

        return style.by_scenario(series, panel, "Clients that reach it (%)")

    def accuracies(self, run: PlottedRun) -> np.ndarray:
        """Return the accuracy of each participating client in a run, in percent."""
        rows = metrics.evaluation(run.evaluation, self.personalized)
        rows = rows[rows["participating"] & rows["round"].isin(run.reported.rounds)]
        return metrics.percent(rows).groupby(rows["client_id"]).mean().to_numpy()
