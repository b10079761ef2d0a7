"""Figures: a kind is a module of this folder with `draw(series, job) -> Figure`.

`series` are the runs that the figure shows (fedloom.study.plot_inputs), or frozen backbones; `job`
holds the settings of the figure. Its class has its keys, and what it needs and shows
(fedloom.config.output_kinds).
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from fedloom.report.figures import style
from fedloom.study.jobs import FigureJob
from fedloom.study.plot_inputs import ShownBackbone, ShownRun


def kind(name: str) -> ModuleType:
    """Import the module of a kind of figure."""
    return importlib.import_module(f"fedloom.report.figures.{name}")


def write(
    job: FigureJob, series: Sequence[ShownRun | ShownBackbone], outputs: dict[str, Path]
) -> None:
    """Draw a figure into the paths of its `pdf` and `png`."""
    with style.applied():
        style.save(kind(job.kind).draw(series, job), outputs)
