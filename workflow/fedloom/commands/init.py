"""`fedloom init`: a folder for a user's studies."""

import shutil
from pathlib import Path

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError


def init(folder: Path) -> list[Path]:
    """Copy a new study, the profiles and the examples; return the files, and overwrite none."""
    new = {
        folder / file.relative_to(start): file
        for start, files in (
            (ROOT / "workflow/new_study", "**/*"),
            (ROOT, "profiles/**/*"),
            (ROOT, "examples/**/*"),
        )
        for file in sorted(start.glob(files))
        if file.is_file() and file.suffix != ".pyc"
    }
    for file in new:
        if file.exists():
            raise FedLoomError(f"{file}: is there already; name a folder without it")
    for file, shipped in new.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shipped, file)
    return list(new)
