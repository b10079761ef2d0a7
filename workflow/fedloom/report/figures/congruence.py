"""Draw how well groups of images agree with k-means, by an option of a grid (SGPT, Fig. 6a)."""

from matplotlib.figure import Figure

from fedloom.report.figures.option_line import by_option
from fedloom.report.metrics import artefact
from fedloom.report.tables import clustering
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownRun


def congruence(run: ShownRun) -> float:
    """Return the congruence of a run's groups of training images in %, see the table's."""
    images = artefact(run)
    train = images[~images["test"]]
    return clustering.congruence(train["group"], train["cluster"], train["class"])


def draw(series: list[ShownRun], job: FigureJob) -> Figure:
    """Draw a panel per scenario, a line per combination of the grid's other options."""
    return by_option(series, job.settings.get("option"), {"Congruence (%)": congruence})
