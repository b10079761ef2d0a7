"""Draw how well groups of images agree with k-means, by an option of a grid (SGPT, Fig. 6a)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedloom.config import requirements
from fedloom.config.output_kinds import RunsFigure
from fedloom.report.figures.option_line import by_option
from fedloom.report.metrics import artefact
from fedloom.report.tables import clustering
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Congruence(RunsFigure):
    """Agreement of groups of images with centralised k-means (SGPT Fig. 6a)."""

    shows = "grids"
    artefact_name = "groups"
    needs = (requirements.the_option,)
    caption = (
        "Overlap of the training images' groups with centralised k-means, over the share of "
        "images that k-means keeps with most of their class: mean over seeds, whiskers one "
        "sample standard deviation each way."
    )

    option: str | None = None
    """An axis that all the grids have; default: the first of each."""


def congruence(run: ShownRun) -> float:
    """Return the congruence of a run's groups of training images in %, see the table's."""
    images = artefact(run)
    train = images[~images["test"]]
    return clustering.congruence(train["group"], train["cluster"], train["class"])


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a panel per scenario, a line per combination of the grid's other options."""
    return by_option(series, job.settings.get("option"), {"Congruence (%)": congruence})
