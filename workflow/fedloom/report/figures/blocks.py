"""Draw accuracies of class tokens, and weights of class prompts, by block of a network."""

from __future__ import annotations

from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Natural, Several
from fedloom.config.output_kinds import FigureKind, RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.study.plot_inputs import PlottedBackbone, PlottedRun

# of the frozen backbone: in no method's colour
TOP: dict[str, dict[str, Any]] = {
    "top5": {"label": "Top-5", "color": "#222222", "linestyle": "-", "marker": "o"},
    "top1": {"label": "Top-1", "color": "#888888", "linestyle": "--", "marker": "s"},
}
NAMED = 20  # names that have room beside a panel


class BlockAccuracy(FigureKind):
    """Nearest-prototype accuracy of the class token by block (PEP-FedPT Fig. 2).

    How well the frozen backbone's class token tells classes apart at the input of every block
    ("out": at the output): a test image is assigned to the nearest class means of the training
    images.
    """

    shows = "backbones"

    def draw(self, series: list[PlottedBackbone]) -> style.Figure:
        """Draw a panel per dataset and backbone, top-5 and top-1 by block."""
        figure, axes = style.panels(len(series))
        for axis, item in zip(axes, series, strict=True):
            frame = metrics.frame(item.accuracy)
            for column, look in TOP.items():
                axis.plot(frame["block"], frame[column], **look)
            *blocks, output = frame["block"]
            shown = blocks[:: -(-len(frame) // 7)]
            axis.set_xticks([*shown, output], [*map(str, shown), "out"])
            title = style.name(item, series, style.BACKBONE)
            axis.set(xlabel="Input of block", ylim=(0, 103), title=title)
        style.left_label(axes, "Nearest prototype\naccuracy (%)")
        style.legend(figure, axes)
        return figure


class SoftWeights(RunsFigure):
    """Mean weight of every class prompt for test images of a class (PEP-FedPT Fig. 8).

    The weight in the mixed prompt, averaged over all test images of one true class (the dark bar);
    a panel per block at which prompts are mixed. First seed.
    """

    artefact_name = "soft_weights"
    reads = "names"
    first_seed = True

    classes: Several[Natural]
    """True classes by their numbers, a row each."""

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a row per run and true class, a panel per block; the true class's bar is dark.

        Raises:
            FedLoomError: a class has no test images.
        """
        frames = [metrics.artefact(run) for run in series]
        blocks = sorted({block for frame in frames for block in frame["block"]})
        pairs = zip(series, frames, strict=True)
        rows = [(*pair, label) for pair in pairs for label in self.classes]
        figure, axes = style.grid(len(rows), len(blocks), (2.4, 3.2))
        for row, (run, frame, label) in zip(axes, rows, strict=True):
            names, chosen = metrics.class_names(run), frame[frame["label"] == label]
            if chosen.empty:
                raise FedLoomError(f"{run.artefact}: no test image of class {label}")
            for axis, block in zip(row, blocks, strict=True):
                bars = chosen[chosen["block"] == block]  # the first class on top
                colours = [(run.style.colour, 1 if c == label else 0.45) for c in bars["class"]]
                axis.barh(bars["class"], bars["weight"], color=colours)
                axis.set(title=f"Block {block}", yticks=[])
                axis.grid(visible=False, axis="y")
                axis.margins(y=0.01)
                axis.invert_yaxis()
            step = -(-len(names) // NAMED)
            at = range(label % step, len(names), step)  # the true class among them
            row[0].set_yticks(at, [names[each] for each in at], fontsize=7)
            about = style.run_name(run, series).replace(", ", "\n")
            row[0].set_ylabel(f"{about}\nImages of {names[label]}".lstrip())
        most = max(frame["weight"].max() for frame in frames)
        for axis in axes.flat:
            axis.set_xlim(0, 1.03 * most)
        for axis in axes[-1]:
            axis.set_xlabel("Mean weight")
        return figure
