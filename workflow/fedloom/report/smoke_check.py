"""Check what became of a study's tables and figures: whether each is there, whole and a number."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from fedloom.common.files import read_table
from fedloom.planning.plan import Plan

# pixels that a picture must have besides those of its commonest colour, to count as drawn
LEAST_PIXELS = 500
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
        return f"{self.name:<32} {self.found:<44} {verdict}"


def check_outputs(plan: Plan) -> list[CheckedOutput]:
    """Check every table and figure of a study that has run."""
    checked = []
    for label, file in zip(plan.settings.select.tables, plan.tables, strict=True):
        checked.append(_check_table(f"table {label}", Path(file)))
    for label, file in zip(plan.settings.select.figures, plan.figures, strict=True):
        checked.append(_check_figure(f"figure {label}", Path(file)))
    return checked


def _check_table(name: str, file: Path) -> CheckedOutput:
    """Check that a table has rows, and at least one number in each row that shows a run."""
    numbers = file.with_suffix(".parquet")
    if not numbers.is_file():
        return CheckedOutput(name, "", f"{numbers} is missing")
    frame = read_table(numbers).to_pandas()
    texts = pd.read_csv(file.with_suffix(".csv"), dtype=str, keep_default_na=False)

    # count the cells without a value
    cells = texts.to_numpy().ravel()
    empty = sum(str(cell).strip() in EMPTY_CELLS for cell in cells)
    not_numbers = sum("nan" in str(cell).lower().split() for cell in cells)
    found = f"{len(texts)} rows, {len(cells)} cells, {empty} empty, {not_numbers} NaN"

    if frame.empty or texts.empty:
        return CheckedOutput(name, found, "it has no row")
    if empty == len(cells):
        return CheckedOutput(name, found, "it has no number")
    if not_numbers:
        return CheckedOutput(name, found, f"{not_numbers} cells are NaN")
    return CheckedOutput(name, found)


def _check_figure(name: str, file: Path) -> CheckedOutput:
    """Check that a figure was drawn: that its picture is more than an empty page."""
    picture = file.with_suffix(".png")
    for path in (file, picture):
        if not path.is_file():
            return CheckedOutput(name, "", f"{path} is missing")

    with Image.open(picture) as image:
        grey = image.convert("L")
        counts = grey.histogram()
        found = f"{image.width} x {image.height} pixels"
    if sum(counts) - max(counts) < LEAST_PIXELS:
        return CheckedOutput(name, found, "nothing is drawn")
    return CheckedOutput(name, found)
