"""The studies that ship: workflow/studies/<paper>/<artefact>.yaml, and those of micro and real."""

import re
from difflib import get_close_matches
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.machine.install import ROOT

FOLDER = ROOT / "workflow/studies"
PROTOCOL = "protocol.yaml"  # shared by the studies of a paper, and no study itself


def studies() -> list[Path]:
    """Return the files of all studies that ship, with table10 behind table9."""
    files = [file for file in FOLDER.glob("*/*.yaml") if file.name != PROTOCOL]
    split = {file: re.split(r"(\d+)", name_of(file)) for file in files}
    return sorted(files, key=lambda file: [int(p) if p.isdigit() else p for p in split[file]])


def name_of(file: Path) -> str:
    """Return the name of a study that ships, <folder>/<file>."""
    return str(file.relative_to(FOLDER).with_suffix(""))


def file_of(study: str) -> Path:
    """Return the file of a study: `study` itself, or that of a name as `fedloom studies` prints."""
    shipped = FOLDER / f"{study}.yaml"
    for file in (Path(study), shipped):
        if file.exists():
            return file
    names = [*map(str, Path(study).parent.glob("*.yaml")), *map(name_of, studies())]
    near = " or ".join(get_close_matches(study, names))
    hint = f"did you mean {near}?" if near else "`fedloom studies` prints the names"
    raise FedLoomError(f"{study}: no file, and no study that ships; {hint}")
