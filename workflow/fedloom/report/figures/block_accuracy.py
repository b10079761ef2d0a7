"""Draw where in the network the class token tells classes apart (PEP-FedPT, Fig. 2)."""

from __future__ import annotations

from typing import Any

from fedloom.config.output_kinds import FigureKind
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownBackbone

KEYS = ("dataset", "backbone")
# of the frozen backbone: in no method's colour
TOP: dict[str, dict[str, Any]] = {
    "top5": {"label": "Top-5", "color": "#222222", "linestyle": "-", "marker": "o"},
    "top1": {"label": "Top-1", "color": "#888888", "linestyle": "--", "marker": "s"},
}


class BlockAccuracy(FigureKind):
    """Nearest-prototype accuracy of the class token by block (PEP-FedPT Fig. 2)."""

    shows = "backbones"
    caption = (
        "How well the frozen backbone's class token tells classes apart at the input of every "
        'block ("out": at the output): a test image is assigned to the nearest class means of '
        "the training images."
    )


def draw(series: list[ShownBackbone], job: FigureJob) -> style.Figure:
    """Draw a panel per dataset and backbone, top-5 and top-1 by block; "out" is the output."""
    figure, axes = style.panels(len(series))
    for axis, item in zip(axes, series, strict=True):
        frame = metrics.frame(item.accuracy)
        for column, look in TOP.items():
            axis.plot(frame["block"], frame[column], **look)
        blocks = frame["block"].tolist()
        step = -(-len(blocks) // 7)
        shown = [*blocks[:-1:step], blocks[-1]]
        axis.set_xticks(shown, [*map(str, shown[:-1]), "out"])
        axis.set(xlabel="Input of block", ylim=(0, 103), title=style.name(item, series, KEYS))
    style.left_label(axes, "Nearest prototype\naccuracy (%)")
    style.legend(figure, axes)
    return figure
