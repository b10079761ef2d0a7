"""Draw which groups of prompts the clients choose, and when."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Natural
from fedloom.config.output_kinds import RunsFigure
from fedloom.report.figures import style
from fedloom.report.metrics import artefact
from fedloom.study.plot_inputs import PlottedRun


class GroupCounts(RunsFigure):
    """Groups that clients choose while training, first seed (SGPT Fig. 2c, 3).

    How many training images chose each group of prompts in the rounds together, by client and by
    round: shares of a row's images.
    """

    artefact_name = "group_counts"
    first_seed = True

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a row per run: shares of the groups by client, all rounds together, and by round."""
        from matplotlib.ticker import MaxNLocator

        figure, axes = style.grid(len(series), 2, (4, 3))
        scale = style.shades(0, 1)
        for row, run in zip(axes, series, strict=True):
            frame = artefact(run)
            for axis, by in zip(row, ("client", "round"), strict=True):
                table = shares(frame, by)
                axis.imshow(table.to_numpy(), "viridis", scale.norm, aspect="auto")
                axis.set(xlabel="Group", ylabel=by.capitalize())
                axis.grid(visible=False)
                axis.xaxis.set_major_locator(MaxNLocator(10, integer=True))
                shown = np.linspace(0, len(table) - 1, min(len(table), 8)).round().astype(int)
                axis.set_yticks(shown, table.index[shown])
            row[0].set_title(style.run_name(run, series), loc="left")
        figure.colorbar(scale, ax=axes, label="Share of the selections", shrink=0.8)
        return figure


def shares(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return each group's share of the selections, a row per client or round, as `by` says."""
    counts = frame.pivot_table("count", by, "group", "sum", fill_value=0)
    return counts.div(counts.sum(axis=1), axis=0)


class ClientGroups(RunsFigure):
    """Images of one client that choose each group of prompts in a round, first seed (SGPT Fig. 3).

    Mean over the rounds that it took part in, whiskers one sample standard deviation each way.
    """

    artefact_name = "group_counts"
    first_seed = True

    client: Natural | None = None
    """Its id; default: who took part in most rounds."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a panel per run, the same client in all runs of a scenario.

        Raises:
            FedLoomError: the client that the figure asks for took part in no round.
        """
        figure, axes = style.by_run(series)
        clients: dict[tuple, int] = {}
        for axis, run in zip(axes, series, strict=True):
            frame, scenario = artefact(run), (run.dataset, run.partition, run.backbone)
            asked = busiest(frame) if self.client is None else self.client
            client = clients.setdefault(scenario, asked)
            table = counts(frame, client)
            if table.empty:
                raise FedLoomError(f"{run.artefact}: client {client} took part in no round")
            rounds = frame.loc[frame["client"] == client, "round"].nunique()
            axis.bar(
                table.index, table["mean"], yerr=table["std"], color=run.style.colour, capsize=1.5,
                error_kw={"elinewidth": 0.9},
            )  # fmt: skip
            title = f"{axis.get_title()}\nclient {client}, {rounds} rounds"
            axis.set(xlabel="Group", title=title)
            style.whole_numbers(axis)
        top = max(axis.get_ylim()[1] for axis in axes)
        for axis in axes:
            axis.set_ylim(0, top)  # so that deviations compare
        style.left_label(axes, "Images that chose it")
        return figure


def busiest(frame: pd.DataFrame) -> int:
    """Return the client that took part in most rounds, of several the first."""
    rounds = frame.groupby("client")["round"].nunique()
    return int(rounds.index.to_numpy()[rounds.to_numpy().argmax()])


def counts(frame: pd.DataFrame, client: int) -> pd.DataFrame:
    """Return `mean` and sample deviation `std` (NaN of one round) of a client's images by group."""
    rows = frame[frame["client"] == client]
    return rows.groupby("group")["count"].agg(["mean", "std"])
