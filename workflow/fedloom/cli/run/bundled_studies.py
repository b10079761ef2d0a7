"""Find the studies that ship with FedLoom.

- Studies of papers are in workflow/papers/<paper>/<artefact>.yaml.
- Other studies are in workflow/studies: micro studies, and studies of photographs.
"""

import re
from difflib import get_close_matches
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import read_text
from fedloom.config.reading import CLAIMS, NUMBERS, PAPERS, parse
from fedloom.machine.install import ROOT

OTHERS = ROOT / "workflow/studies"
# the file that the studies of a folder share
PROTOCOL = "protocol.yaml"
NO_STUDIES = (PROTOCOL, NUMBERS, CLAIMS)
# of the folders that are not a paper's
TITLES = {"micro": "Micro studies", "real": "Studies of photographs"}


def all_studies() -> list[Path]:
    """Return the files of all studies that ship, in natural order: table10 after table9."""
    files = [*PAPERS.glob("*/*.yaml"), *OTHERS.glob("*/*.yaml")]
    studies = [file for file in files if file.name not in NO_STUDIES]
    return sorted(studies, key=_natural_order)


def studies_by_folder() -> dict[str, list[Path]]:
    """Return the files of all studies that ship by their folder, those of papers first."""
    folders = dict[str, list[Path]]()
    # sorting keeps the natural order within papers, and within the other folders
    for file in sorted(all_studies(), key=lambda file: file.parent.name in TITLES):
        folders.setdefault(file.parent.name, []).append(file)
    return folders


def folder_title(folder: str) -> str:
    """Return the heading of a folder of studies: the citation of its paper, or an entry of TITLES.

    Of a paper's numbers, only the lines above them are parsed: all would take a tenth of a second.
    """
    if folder in TITLES:
        return TITLES[folder]
    file = PAPERS / folder / NUMBERS
    above_numbers, _, _ = read_text(file).partition("\ntables:")
    head = parse(above_numbers, str(file))
    assert isinstance(head, dict), f"{file} has keys above its tables"
    return str(head["citation"])


def _natural_order(file: Path) -> list[str | int]:
    """Return the name of a study in parts, with numbers as numbers."""
    order = list[str | int]()
    for part in re.split(r"(\d+)", study_name(file)):
        if part.isdigit():
            order.append(int(part))
        else:
            order.append(part)
    return order


def study_name(file: Path) -> str:
    """Return the name of a study that ships, <folder>/<file>."""
    return f"{file.parent.name}/{file.stem}"


def find_study_file(study: str) -> Path:
    """Return the file of a study, which is given by its path or as `fedloom studies` prints it.

    Raises:
        FedLoomError: there is no such file or study.
    """
    for file in (Path(study), PAPERS / f"{study}.yaml", OTHERS / f"{study}.yaml"):
        if file.exists():
            return file

    # find close names, among the files of the same folder and the studies that ship
    beside = [str(file) for file in Path(study).parent.glob("*.yaml")]
    names = [*beside, *map(study_name, all_studies())]
    close = get_close_matches(study, names)
    if close:
        raise FedLoomError(
            f"{study}: not a file and not a bundled study; did you mean {' or '.join(close)}?"
        )

    raise FedLoomError(
        f"{study}: not a file and not a bundled study; `fedloom studies` prints the names"
    )
