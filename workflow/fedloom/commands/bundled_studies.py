"""The studies that ship: workflow/studies/<paper>/<artefact>.yaml, and those of micro and real."""

from difflib import get_close_matches
from pathlib import Path

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError

FOLDER = ROOT / "workflow/studies"
PROTOCOL = "protocol.yaml"  # shared by the studies of a paper, and no study itself


def studies() -> list[Path]:
    """Return the files of all studies that ship, those of a paper in the order of its artefacts."""
    files = [file for file in FOLDER.glob("*/*.yaml") if file.name != PROTOCOL]
    return sorted(files, key=lambda file: (file.parent.name, *_artefact(file.stem)))


def _artefact(stem: str) -> tuple[str, int, str]:
    """Return a key that sorts table10 behind table9, and figures behind tables."""
    kind = stem.rstrip("0123456789")
    number = stem.removeprefix(kind)
    return {"table": "0", "figure": "1"}.get(kind, "2"), int(number or 0), stem


def file_of(study: str) -> Path:
    """Return the file of a study: `study` itself, or that of a name as `fedloom studies` prints."""
    shipped = FOLDER / f"{study}.yaml"
    if Path(study).exists() or not shipped.is_file():
        return _existing(Path(study))
    return shipped


def _existing(file: Path) -> Path:
    """Return a file that exists, or raise an error that names those that `file` may mean."""
    if file.exists():
        return file
    names = [str(study.relative_to(FOLDER).with_suffix("")) for study in studies()]
    own = [str(path) for path in file.parent.glob("*.yaml")]
    ends = {name: name.rpartition("/")[2] for name in names}
    near = get_close_matches(str(file), [*names, *own, *ends.values()])
    meant = [name for name in [*own, *names] if {name, ends.get(name)} & set(near[:1])]
    hint = f"did you mean {' or '.join(meant)}?" if meant else "`fedloom studies` prints the names"
    raise FedLoomError(f"{file}: no file, and no study that ships; {hint}")
