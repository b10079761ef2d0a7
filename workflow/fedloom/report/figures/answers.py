"""Draw a few test images with the answers of clients."""

from __future__ import annotations

import io
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedloom.common.run_tables import ANSWERS_SCHEMA
from fedloom.config.output_kinds import RunsFigure
from fedloom.config.settings import KindSpec
from fedloom.hooks.manifest import ANSWERS, EXAMPLES
from fedloom.report import metrics
from fedloom.report.figures import chosen_panels, style
from fedloom.report.plotted_runs import PlottedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# right and wrong answers: their colour, and a sign for those who cannot tell the colours apart
RIGHT = ("#009E73", "\u2713")
WRONG = ("#D55E00", "\u2717")
# the points of the text at an image, and the letters and lines of a name that have room there
POINTS = 6
LETTERS, LINES = 16, 3
# inches of a row of images with their texts
ROW = (7.4, 1.65)
# the most rows that have room on a page
MOST_ROWS = 14
# the centre of each image is at a whole number; the longer side of a picture has this length
SIDE = 0.8


class Answers(RunsFigure):
    """Nine test images, and what clients answer after the last round, first seed.

    A row is a method. The images are drawn at random from those of the clients that take part in
    training, at most one of a client as far as there are as many. Above an image is its class;
    below it is the class that its client answers, and the probability of that class. A right answer
    has a green frame and a tick, a wrong one an orange frame and a cross. Of more than 14 methods,
    evenly spaced ones are shown.
    """

    spec = KindSpec(artefact=ANSWERS, reads="names", first_seed=True)

    def draw(self, series: list[PlottedRun]) -> style.Figure:
        """Draw a row of images for each run."""
        runs = chosen_panels.evenly(series, MOST_ROWS)
        figure, axes = style.grid(len(runs), 1, ROW)
        for axis, run in zip(axes[:, 0], runs, strict=True):
            _draw_row(axis, metrics.artefact(run, ANSWERS_SCHEMA), metrics.class_names(run))
            axis.set_title(style.run_name(run, series) or run.title, loc="left")
        chosen_panels.say_left_out(figure, {"runs": (len(runs), len(series))})
        return figure


def _draw_row(axis: Axes, rows: pd.DataFrame, names: list[str]) -> None:
    """Draw the images of a run side by side, each with its class and its client's answer."""
    for place, row in enumerate(rows.to_dict("records")):
        label, predicted = row["label"], row["predicted"]
        colour, sign = WRONG
        if predicted == label:
            colour, sign = RIGHT
        _draw_picture(axis, place, row["picture"], colour)

        # the layout need not measure texts, since the panel has room for them
        text = {"x": place, "ha": "center", "fontsize": POINTS, "in_layout": False}
        answer = f"{sign} {100 * row['probability']:.0f} %\n{_wrapped(names[predicted])}"
        axis.text(y=0.45, s=_wrapped(names[label]), va="bottom", **text)
        axis.text(y=-0.45, s=answer, va="top", color=colour, **text)

    # room for three lines of text above the images, and for four below
    axis.set(xlim=(-0.5, EXAMPLES - 0.5), ylim=(-0.95, 0.85), xticks=[], yticks=[])
    axis.set_aspect("equal")
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)


def _draw_picture(axis: Axes, place: int, file: bytes, colour: str) -> None:
    """Draw a picture, in its own proportions and with a frame, around the point (place, 0)."""
    from matplotlib.patches import Rectangle
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    height, width = (SIDE * side / max(picture.shape[:2]) for side in picture.shape[:2])
    left, bottom = place - width / 2, -height / 2
    # without interpolation, a PDF has the picture as it is, and not a row enlarged into one image
    axis.imshow(picture, extent=(left, left + width, bottom, bottom + height), interpolation="none")
    axis.add_patch(Rectangle((left, bottom), width, height, fill=False, edgecolor=colour, lw=2))


def _wrapped(name: str) -> str:
    """Return the name of a class in lines that have room at an image; a long name is cut."""
    return "\n".join(wrap(name, LETTERS, max_lines=LINES, placeholder=" \u2026"))
