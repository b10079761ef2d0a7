"""Export the functions that a plugin with a kind of table or figure may call."""

from typing import TYPE_CHECKING

from fedloom.common.errors import FedLoomError as FedLoomError
from fedloom.common.renamed import renamed
from fedloom.config.output_kinds import AccuracyTable as AccuracyTable
from fedloom.config.output_kinds import ArtefactFigure as ArtefactFigure
from fedloom.config.output_kinds import FilePath as FilePath
from fedloom.config.output_kinds import Personalized as Personalized
from fedloom.config.output_kinds import RunsFigure as RunsFigure
from fedloom.config.output_kinds import RunsTable as RunsTable
from fedloom.config.settings import KindSpec as KindSpec
from fedloom.report import metrics as metrics
from fedloom.report import requirements as requirements
from fedloom.report.figures import style as style
from fedloom.report.figures.convergence import lines as lines
from fedloom.report.plotted_runs import PlottedRun as PlottedRun
from fedloom.report.tables.accuracy import describe_rounds as describe_rounds
from fedloom.report.tables.layout import Column as Column
from fedloom.report.tables.units import MEGABYTES as MEGABYTES
from fedloom.report.tables.units import MILLIONS as MILLIONS
from fedloom.report.tables.units import MILLISECONDS as MILLISECONDS
from fedloom.report.tables.units import SECONDS as SECONDS

# functions by the names that they had before 2026-11-27
RENAMED = {"at": "describe_rounds"}

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, RENAMED)
