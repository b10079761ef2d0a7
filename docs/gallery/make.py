"""Run the studies of the gallery, and keep their tables and figures here: minutes on two cores.

    PYTHONPATH=workflow .venv/bin/python docs/gallery/make.py

A figure is kept small, with 64 colours and at most DOTS_PER_INCH.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
DOTS_PER_INCH = 160


def keep(results: Path, study: str) -> None:
    """Copy the tables of a study as Markdown, and its figures as small PNGs."""
    for table in (results / "tables" / study).glob("*.md"):
        (HERE / f"{study}.{table.stem}.txt").write_text(table.read_text())
    for figure in (results / "figures" / study).glob("*.png"):
        with Image.open(figure) as image:
            scale = min(1, DOTS_PER_INCH / round(image.info["dpi"][0]))
            small = image.convert("RGB").resize([round(scale * side) for side in image.size])
            small.quantize(64).save(HERE / f"{study}.{figure.name}", optimize=True)


if __name__ == "__main__":
    for old in [*HERE.glob("*.txt"), *HERE.glob("*.png")]:
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(HERE.glob("*.yaml")):
            command = [sys.executable, "-m", "fedloom", "run", file.resolve(), "--cores", "2"]
            subprocess.run(command, cwd=folder, check=True)
            keep(Path(folder) / "results", file.stem)
