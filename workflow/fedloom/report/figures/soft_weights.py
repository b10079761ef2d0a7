"""Draw how much of every class's prompt goes into the mixed prompt (PEP-FedPT, Fig. 8)."""

from __future__ import annotations

import pandas as pd

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Natural, Several
from fedloom.config.output_kinds import RunsFigure
from fedloom.report import metrics
from fedloom.report.figures import style
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

NAMED = 20  # names that have room beside a panel


class SoftWeights(RunsFigure):
    """Mean weight of every class prompt for test images of a class (PEP-FedPT Fig. 8)."""

    artefact_name = "soft_weights"
    reads = "names"
    first_seed = True
    caption = (
        "The weight of every class's prompt in the mixed prompt, averaged over all test "
        "images of one true class (the dark bar); a panel per block at which prompts are "
        "mixed. First seed."
    )

    classes: Several[Natural]
    """True classes by their numbers, a row each."""


def draw(series: list[ShownRun], job: FigureJob) -> style.Figure:
    """Draw a row per run and true class, a panel per block; the true class's own bar is dark.

    Raises:
        FedLoomError: there is no test image of a class asked for.
    """
    frames = [metrics.artefact(run) for run in series]
    blocks = sorted({block for frame in frames for block in frame["block"]})
    pairs = zip(series, frames, strict=True)
    rows = [(*pair, label) for pair in pairs for label in job.settings["classes"]]
    figure, axes = style.grid(len(rows), len(blocks), (2.4, 3.2))
    for row, (run, frame, label) in zip(axes, rows, strict=True):
        names, chosen = metrics.class_names(run), frame[frame["label"] == label]
        if chosen.empty:
            raise FedLoomError(f"{run.artefact}: no test image of class {label}")
        for axis, block in zip(row, blocks, strict=True):
            _panel(axis, run, chosen[chosen["block"] == block], label)
            axis.set_title(f"Block {block}")
        step = -(-len(names) // NAMED)
        at = range(label % step, len(names), step)  # the true class among them
        row[0].set_yticks(at, [names[each] for each in at], fontsize=7)
        about = style.name(run, series, (*style.SCENARIO, "title"))
        row[0].set_ylabel(f"{about.replace(', ', chr(10))}\nImages of {names[label]}".lstrip())
    most = max(frame["weight"].max() for frame in frames)
    for axis in axes.flat:
        axis.set_xlim(0, 1.03 * most)
    for axis in axes[-1]:
        axis.set_xlabel("Mean weight")
    return figure


def _panel(axis: style.Axes, run: ShownRun, rows: pd.DataFrame, label: int) -> None:
    """Draw a bar per class prompt, the first class on top."""
    colours = [(run.look.colour, 1 if each == label else 0.45) for each in rows["class"]]
    axis.barh(rows["class"], rows["weight"], color=colours)
    axis.set_yticks([])
    axis.grid(visible=False, axis="y")
    axis.margins(y=0.01)
    axis.invert_yaxis()
