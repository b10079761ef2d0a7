"""Runs of tables and figures, and their jobs, made by hand."""

from dataclasses import replace
from pathlib import Path

from fedloom.config.rounds import Reported
from fedloom.config.settings import Look
from fedloom.study.jobs import FigureJob, Shown, ShownPlugin, TableJob
from fedloom.study.plot_inputs import ShownRun

RUN = ShownRun(
    dataset="d",
    partition="p",
    backbone="b",
    method="m",
    seed=0,
    title="M",
    look=Look("#0072B2", 0, "o"),
    plugin=ShownPlugin(),
    reported=Reported((1,)),
    evaluation=Path("evaluation.parquet"),
    rounds=Path("rounds.parquet"),
    store=Path("images.arrow"),
)
NOTHING = Shown((), (), (), None, {})


def shown(**values: object) -> ShownRun:
    """A run like RUN with other values."""
    return replace(RUN, **values)


def table_job(kind: str = "accuracy", **settings: object) -> TableJob:
    settings = {"personalized": True} | settings  # the schema's default
    return TableJob("s", "main", kind, None, settings, False, None, NOTHING)


def figure_job(
    kind: str = "convergence", shots: dict | None = None, **settings: object
) -> FigureJob:
    settings = {"personalized": True} | settings
    return FigureJob("s", "main", kind, settings, shots or {}, NOTHING, ())


def table_files(folder: Path) -> dict[str, Path]:
    """The files that a table is written into."""
    return {kind: folder / f"t.{kind}" for kind in ("md", "csv", "tex", "html", "parquet")}
