"""Pages of the notebooks in docs/notebooks, and of the columns of the frame that they read."""

from pathlib import Path

import nbformat

from fedloom.report.tidy import TIDY_COLUMNS


def notebook_page(file: Path) -> str:
    """Return the cells of a notebook, without outputs, as a page of the site."""
    cells = nbformat.read(file, as_version=4).cells
    first, *rest = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        for cell in cells
    ]
    return "\n\n".join([first, f"[Download this notebook]({file.name})", *rest]) + "\n"


def columns_page() -> str:
    """Return the reference of the columns of `fedloom.results`."""
    names = "`fedloom.results`, `fedloom.scan` and `fedloom export`"
    rows = [f"| `{name}` | {meaning} |" for name, meaning in TIDY_COLUMNS.items()]
    intro = f"{names} have a row per run, evaluated round, client and group:"
    table = "\n".join(["| column | meaning |", "|---|---|", *rows])
    return f"# Columns of the results\n\n{intro}\n\n{table}\n"
