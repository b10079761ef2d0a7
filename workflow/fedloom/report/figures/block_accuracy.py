"""Where in the network the class token tells classes apart (PEP-FedPT, Fig. 2)."""

import pandas as pd
from matplotlib.figure import Figure

from fedloom.report.figures import style

KEYS = ("dataset", "backbone")
TOP = {"top5": ("Top-5", "-"), "top1": ("Top-1", "--")}


def draw(series: list[dict], entry: dict) -> Figure:
    """A panel per data set and backbone, top-5 and top-1 by block; "out" is the output."""
    figure, axes = style.panels(len(series))
    for axis, item in zip(axes, series, strict=True):
        frame = pd.read_parquet(item["accuracy"])
        for place, (column, (label, line)) in enumerate(TOP.items()):
            axis.plot(
                frame["block"],
                frame[column],
                label=label,
                color=style.COLOURS[place],
                linestyle=line,
                marker=style.MARKERS[place],
            )
        blocks = frame["block"].tolist()
        step = 1 if len(blocks) <= 13 else 4
        shown = [*blocks[:-1:step], blocks[-1]]
        axis.set_xticks(shown, [*map(str, shown[:-1]), "out"])
        axis.set(xlabel="Input of block", ylim=(0, 103), title=style.name(item, series, KEYS))
    for axis in axes[:: min(len(axes), 3)]:
        axis.set_ylabel("Nearest prototype\naccuracy (%)")
    style.legend(figure, axes)
    return figure
