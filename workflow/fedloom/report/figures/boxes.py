"""Draw how a client's own entry of a list bears on its accuracy (FedPHA, Fig. 5)."""

from __future__ import annotations

import pandas as pd

from fedloom.common.ids import SERVER_MODEL, entry_of
from fedloom.config import requirements
from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.report.members import varied_lists
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


class Boxes(RunsFigure):
    """Each client's accuracy over a grid's members, by its own entry of the list that the grid
    varies; consecutive clients share an entry, client k of K the entry k*n//K of n (FedPHA Fig.
    5).
    """

    shows = "grid"
    needs = (requirements.one_list,)
    caption = (
        "Accuracy of each client at the reported rounds, mean over seeds, over all members of "
        "the grid, by its own entry of the list: median, middle half, whiskers to the last "
        "point within 1.5 times the box, and points beyond."
    )


def accuracies(series: list[ShownRun]) -> pd.DataFrame:
    """Return one row per participating client and member of the grid.

    Columns are `client_id`, `domain`, `entry` (the position of the client's entry in the list),
    `value` (that entry), `method`, and `accuracy` in percent, the mean over the reported rounds
    and seeds.
    """
    parts = []
    for run in series:
        (values,) = varied_lists(run).values()
        rows = metrics.evaluation(run.evaluation)
        rows = rows[rows["client_id"] != SERVER_MODEL]
        clients = int(rows["client_id"].max()) + 1
        rows = rows[rows["round"].isin(run.reported.rounds) & rows["participating"]]
        ids = rows["client_id"].tolist()
        entry = pd.Series([entry_of(k, clients, len(values)) for k in ids], rows.index)
        parts.append(
            pd.DataFrame(
                {
                    "client_id": rows["client_id"],
                    "domain": rows["domain"],
                    "entry": entry,
                    "value": entry.map(dict(enumerate(values))),
                    "method": run.method,
                    "accuracy": 100 * rows["num_correct"] / rows["num_test"],
                }
            )
        )
    keys = ["client_id", "entry", "value", "method"]
    grouped = pd.concat(parts).groupby(keys, sort=False)
    return grouped.agg({"domain": "first", "accuracy": "mean"}).reset_index()


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a panel per scenario and client; a box spans the members that give it one value.

    The line is the median, the box the middle half, whiskers reach to the last point within 1.5
    times the box, points beyond them are drawn.
    """
    (option,) = varied_lists(series[0])
    items = []
    for runs in style.scenarios(series).values():
        frame = accuracies(runs)
        items += [(runs[0], client, rows) for client, rows in frame.groupby("client_id")]
    figure, axes = style.panels(len(items))
    for axis, (run, client, rows) in zip(axes, items, strict=True):
        groups = {value: part["accuracy"] for value, part in rows.groupby("value")}
        axis.boxplot(
            list(groups.values()), widths=0.6, patch_artist=True,
            boxprops={"facecolor": "#cfe3f1"}, medianprops={"color": "black", "linewidth": 1.6},
            flierprops={"marker": ".", "markersize": 4},
        )  # fmt: skip
        axis.set_xticks(range(1, len(groups) + 1), map(str, groups))
        title = [style.name(run, series), f"client {client}", _domain(rows, items)]
        axis.set(xlabel=f"{option}.{rows['entry'].iloc[0]}", title=", ".join(filter(None, title)))
    style.left_label(axes, "Test accuracy (%)")
    return figure


def _domain(rows: pd.DataFrame, items: list[tuple]) -> str:
    """Return a client's domain, or "" if all clients have the same."""
    domains = {part["domain"].iloc[0] for _, _, part in items}
    return rows["domain"].iloc[0] if len(domains) > 1 else ""
