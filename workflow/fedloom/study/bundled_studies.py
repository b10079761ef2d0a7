"""The studies that ship: workflow/studies/<paper>/<artefact>.yaml, and workflow/studies/micro."""

from pathlib import Path

from fedloom.common.checkout import ROOT

FOLDER = ROOT / "workflow/studies"
PROTOCOL = "protocol.yaml"  # what the studies of a paper share; no study by itself


def studies() -> list[Path]:
    """Return the files of all studies that ship, those of a paper in the order of its artefacts."""
    files = [file for file in FOLDER.glob("*/*.yaml") if file.name != PROTOCOL]
    return sorted(files, key=lambda file: (file.parent.name, *_artefact(file.stem)))


def _artefact(stem: str) -> tuple[str, int, str]:
    """Return what sorts table10 behind table9, and figures behind tables."""
    kind = stem.rstrip("0123456789")
    number = stem.removeprefix(kind)
    order = {"table": "0", "figure": "1"}.get(kind, "2")
    return order, int(number) if number else 0, stem


def file_of(study: Path) -> Path:
    """Return a study's file: the path itself, or that of a study that ships, by its name.

    Args:
        study: a path, or a name such as fedpha/table3, as `fedloom studies` prints it.
    """
    shipped = FOLDER / f"{study}.yaml"
    return shipped if shipped.is_file() and not study.exists() else study


def name_of(file: Path) -> str:
    """Return the name that a study that ships has in `study.name`, by its file."""
    folder, stem = file.parent.name, file.stem
    return stem if folder == "micro" else f"{folder}_{stem}"
