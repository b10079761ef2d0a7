"""Runs of tables and figures, and their jobs, made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedloom.common.run_tables import RUN_SCHEMAS
from fedloom.config.settings import ReportedRounds
from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob, PlotInputs, TableJob
from fedloom.report import figures, tables
from fedloom.report.figures import style
from fedloom.report.plotted_runs import LineStyle, PlottedRun

RUN = PlottedRun(
    dataset="d",
    partition="p",
    backbone="b",
    method="m",
    seed=0,
    title="M",
    look={},
    reported=ReportedRounds((1,)),
    evaluation=Path("evaluation.parquet"),
    rounds=Path("rounds.parquet"),
    confusion=Path("confusion.parquet"),
    calibration=Path("calibration.parquet"),
    store=Path("images.arrow"),
    style=LineStyle("#0072B2", 0, "o"),
)
NOTHING = PlotInputs((), (), (), None, {})


def shown(**values: object) -> PlottedRun:
    """Return RUN with other values."""
    return replace(RUN, **values)


def filled(rows: Any, table: str) -> pd.DataFrame:
    """Return rows of a run's table with all columns; those not given are 0, "" or False."""
    frame = pd.DataFrame(rows)
    given = {column: frame[column] for column in frame}
    zeros = {
        column.name: pd.Series([column.type.to_pandas_dtype()()] * len(frame))
        for column in RUN_SCHEMAS[table]
        if str(column.type) != "string"
    }
    texts = {
        c.name: pd.Series([""] * len(frame)) for c in RUN_SCHEMAS[table] if c.name not in zeros
    }
    return pd.DataFrame(zeros | texts | given)


def table_job(kind: str = "accuracy", **settings: object) -> TableJob:
    return TableJob("s", "main", kind, "", None, settings, None, NOTHING)


def figure_job(kind: str = "convergence", **settings: object) -> FigureJob:
    return FigureJob("s", "main", kind, "", settings, NOTHING, ())


def table_kind(kind: str = "accuracy", **settings: object) -> Any:
    """Return an instance of a kind of table, with these keys."""
    return tables.instantiate_kind(table_job(kind, **settings))


def draw(kind: str, series: list, **settings: object) -> style.Figure:
    """Draw a figure of a kind with these keys."""
    with style.house_style():
        return figures.draw_figure(figure_job(kind, **settings), series)


def table_files(folder: Path) -> dict[str, Path]:
    """Return the files that a table is written into."""
    return {kind: folder / f"t.{kind}" for kind in paths.TABLE_FORMATS}
