"""The studies that ship: workflow/studies/<paper>/<artefact>.yaml, and those of micro and real."""

from pathlib import Path

from fedloom.common.checkout import ROOT

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


def file_of(study: Path) -> Path:
    """Return the file of a study: `study` itself, or that of a name as `fedloom studies` prints."""
    shipped = FOLDER / f"{study}.yaml"
    return shipped if shipped.is_file() and not study.exists() else study
