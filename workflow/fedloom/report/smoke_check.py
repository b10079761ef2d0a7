"""Check what became of a study's tables and figures: whether each is there, whole and a number."""

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from fedloom.common.files import read_table
from fedloom.common.json_types import JsonDict
from fedloom.machine.job_events import read_events
from fedloom.planning import paths
from fedloom.planning.plan import Plan
from fedloom.planning.resources.cost import RATES
from fedloom.planning.resources.estimates import (
    CORE_OPERATIONS_PER_SECOND,
    LIBRARIES_MB,
    estimate_run,
)
from fedloom.planning.run_labels import Run

# what a cell with NaN holds
NOT_A_NUMBER = re.compile(r"\bnan\b", re.IGNORECASE)
# text of an empty cell
EMPTY_CELLS = ("", "-", "nan", "NaN")


@dataclass(frozen=True)
class CheckedOutput:
    """A table or figure, and what is wrong with it."""

    name: str
    # what it holds, in words
    found: str
    # "" if nothing is wrong
    problem: str = ""

    @property
    def line(self) -> str:
        """A line about it for the terminal."""
        verdict = "ok"
        if self.problem:
            verdict = f"FAILED: {self.problem}"
        return f"  {self.name:<32} {self.found:<44} {verdict}"


def check_outputs(plan: Plan) -> list[CheckedOutput]:
    """Check every table and figure of a study that has run."""
    checked = []
    for label, file in zip(plan.settings.select.tables, plan.tables, strict=True):
        kind = plan.settings.tables[label].kind
        checked.append(_check_table(f"table {label}", kind, Path(file)))
    for label, file in zip(plan.settings.select.figures, plan.figures, strict=True):
        checked.append(_check_figure(f"figure {label}", Path(file)))
    return checked


def steps_beside_plan(plan: Plan) -> list[str]:
    """Return a heading, and a line for each run: what its first round took, and what was planned.

    A run whose job was made before, and left no log, has no line.
    """
    lines = ["what the first round of each run took, and what `fedloom plan` had said:"]
    for run in plan.runs:
        log = Path(paths.log_path("train", plan.job_files(run, paths.STATE)[0]))
        took = [event for event in read_events(log) if event["event"] == "took"]
        if took:
            lines.append(_step_beside_plan(plan, run, took[-1]))
    return lines


def _step_beside_plan(plan: Plan, run: Run, took: JsonDict) -> str:
    """Return the line for a run; `took` is what its job measured.

    The memory is that of the GPU if the job had one, else that of the job's process.
    """
    rounds = read_table(paths.path_for(paths.ROUNDS, run)).to_pandas()
    work = estimate_run(plan.settings, run)

    # on a GPU, the rate of cost.RATES is assumed; else that of one core
    used = took["gpu_megabytes"]
    rate = RATES[plan.settings.study.precision]
    planned = work.megabytes
    if used is None:
        used = took["megabytes"]
        rate = CORE_OPERATIONS_PER_SECOND * float(rounds["cores"].max())
        planned += LIBRARIES_MB
    expected = work.operations / rate + work.seconds

    return (
        f"  {run.path}: round {rounds['seconds'].iloc[0]:.1f} s, "
        f"job {took['seconds']:.1f} s (planned {expected:.1f} s), "
        f"{used:,.0f} MB (planned {planned:,.0f} MB)"
    )


def _check_table(name: str, kind: str, file: Path) -> CheckedOutput:
    """Check that a table of a kind has a row, a measured number, and no NaN in its text.

    A table of claims may have no number, if none of them was run.
    """
    numbers = file.with_suffix(".parquet")
    if not numbers.is_file():
        return CheckedOutput(name, "", f"{numbers} is missing")
    frame = read_table(numbers).to_pandas()
    texts = pd.read_csv(file.with_suffix(".csv"), dtype=str, keep_default_na=False)

    # count the cells without a value
    cells = texts.to_numpy().ravel()
    empty = sum(str(cell).strip() in EMPTY_CELLS for cell in cells)
    not_numbers = sum(NOT_A_NUMBER.search(str(cell)) is not None for cell in cells)
    found = f"{len(texts)} rows, {len(cells)} cells, {empty} empty, {not_numbers} NaN"

    if frame.empty:
        return CheckedOutput(name, found, "it has no row")
    measured = frame.select_dtypes("float")
    if kind != "claims" and measured.columns.size and measured.isna().all(axis=None):
        return CheckedOutput(name, found, "it has no number")
    if not_numbers:
        return CheckedOutput(name, found, f"{not_numbers} cells are NaN")
    return CheckedOutput(name, found)


def _check_figure(name: str, file: Path) -> CheckedOutput:
    """Check that a figure was drawn: that a panel of it has data (see style.save_figure)."""
    picture = file.with_suffix(".png")
    for path in (file, picture):
        if not path.is_file():
            return CheckedOutput(name, "", f"{path} is missing")

    # the description says how many panels have data
    with Image.open(picture) as image:
        description = str(image.info.get("Description", ""))
        found = f"{image.width} x {image.height} pixels, {description}"
    if description.startswith("0 "):
        return CheckedOutput(name, found, "nothing is drawn")
    return CheckedOutput(name, found)
