"""The numbers of papers (workflow/published) that tables show beside the measured ones."""

from pathlib import Path
from typing import Any

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.schema import read_yaml

FOLDER = ROOT / "workflow/published"


def paper_names(folder: Path = FOLDER) -> list[str]:
    """Return the names of the papers that have a file in a folder, in alphabetical order."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def read_paper(paper: str, where: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return what a paper's file says; in workflow/published, `citation` and `tables`."""
    if paper not in paper_names(folder):
        raise FedLoomError(f"{where}: no '{paper}'; known: {', '.join(paper_names(folder))}")
    return read_yaml(folder / f"{paper}.yaml")
