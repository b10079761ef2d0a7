"""The studies that ship: those of papers, workflow/papers/<paper>/<artefact>.yaml, and others.

The others are in workflow/studies: micro studies, and studies of photographs.
"""

import re
from difflib import get_close_matches
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.config.reading import CLAIMS, NUMBERS, PAPERS
from fedloom.machine.install import ROOT

OTHERS = ROOT / "workflow/studies"
PROTOCOL = "protocol.yaml"  # shared by the studies of a folder, and no study itself
NO_STUDIES = (PROTOCOL, NUMBERS, CLAIMS)


def studies() -> list[Path]:
    """Return the files of all studies that ship, with table10 behind table9."""
    files = [file for folder in (PAPERS, OTHERS) for file in folder.glob("*/*.yaml")]
    files = [file for file in files if file.name not in NO_STUDIES]
    split = {file: re.split(r"(\d+)", name_of(file)) for file in files}
    return sorted(files, key=lambda file: [int(p) if p.isdigit() else p for p in split[file]])


def name_of(file: Path) -> str:
    """Return the name of a study that ships, <folder>/<file>."""
    return f"{file.parent.name}/{file.stem}"


def file_of(study: str) -> Path:
    """Return the file of a study: `study` itself, or that of a name as `fedloom studies` prints."""
    for file in (Path(study), PAPERS / f"{study}.yaml", OTHERS / f"{study}.yaml"):
        if file.exists():
            return file
    names = [*map(str, Path(study).parent.glob("*.yaml")), *map(name_of, studies())]
    near = " or ".join(get_close_matches(study, names))
    hint = f"did you mean {near}?" if near else "`fedloom studies` prints the names"
    raise FedLoomError(f"{study}: no file, and no study that ships; {hint}")
