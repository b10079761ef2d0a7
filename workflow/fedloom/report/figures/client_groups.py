"""Draw how often one client chooses each group, over its rounds (SGPT, Fig. 3)."""

from __future__ import annotations

import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Natural
from fedloom.config.output_kinds import RunsFigure
from fedloom.report.figures import style
from fedloom.report.metrics import artefact
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class ClientGroups(RunsFigure):
    """Images of one client that choose each group in a round (SGPT Fig. 3)."""

    artefact_name = "group_counts"
    first_seed = True
    caption = (
        "Images of one client that chose each group of prompts in a round: mean over the "
        "rounds that it took part in, whiskers one sample standard deviation each way. First "
        "seed."
    )

    client: Natural | None = None
    """Its id; default: who took part in most rounds."""


def busiest(frame: pd.DataFrame) -> int:
    """Return the client that took part in most rounds, of several the first."""
    rounds = frame.groupby("client")["round"].nunique()
    return int(rounds.index.to_numpy()[rounds.to_numpy().argmax()])


def counts(frame: pd.DataFrame, client: int) -> pd.DataFrame:
    """Return a client's mean number of images by group over its rounds, and the sample deviation.

    The deviation of a single round is NaN. Columns are `mean` and `std`, the index is the group.
    """
    rows = frame[frame["client"] == client]
    return rows.groupby("group")["count"].agg(["mean", "std"])


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per run, the same client in all runs of a scenario.

    Raises:
        FedLoomError: the client that the figure asks for took part in no round.
    """
    figure, axes = style.panels(len(series))
    frames = [artefact(run) for run in series]
    clients: dict[tuple, int] = {}
    for axis, run, frame in zip(axes, series, frames, strict=True):
        scenario = (run.dataset, run.partition, run.backbone)
        asked = job.settings.get("client")
        client = clients.setdefault(scenario, busiest(frame) if asked is None else asked)
        table = counts(frame, client)
        if table.empty:
            raise FedLoomError(f"{run.artefact}: client {client} took part in no round")
        rounds = frame.loc[frame["client"] == client, "round"].nunique()
        axis.bar(
            table.index, table["mean"], yerr=table["std"], color=run.look.colour, capsize=1.5,
            error_kw={"elinewidth": 0.9},
        )  # fmt: skip
        name = style.name(run, series, (*style.SCENARIO, "title")) or run.title
        axis.set(xlabel="Group", title=f"{name}\nclient {client}, {rounds} rounds")
        style.whole_numbers(axis)
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, top)  # so that deviations compare
    style.left_label(axes, "Images that chose it")
    return figure
