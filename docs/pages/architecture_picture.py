"""Draw the picture of docs/architecture.md from the code's own imports.

    PYTHONPATH=workflow .venv/bin/python docs/pages/architecture_picture.py

The folders of the library are rows, from the top floor to the ground; a dot in a row says that the
folder imports the one of the column, and grows with the number of importing modules. All dots lie
to the right of the diagonal: imports only go down.
"""

import math
import textwrap
import tomllib
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/assets/architecture.svg"
PACKAGE = "fedloom"

# lengths in pixels
MARGIN = 16
NAME_WIDTH = 104
MODULES_WIDTH = 520
LINE = 15  # between two lines of names of modules
CELL = 34  # of the matrix
HEAD = 92  # above the first row, for the names of the columns
LARGEST_DOT = 13
SMALLEST_DOT = 3
LETTERS = 88  # of a line of names of modules

FLOORS = ("#e8eef7", "#f4f6fa")  # of rows, in turn
INK = "#1f2937"
FAINT = "#5b6472"
DOT = "#0072b2"
DIAGONAL = "#c9d1dc"


@dataclass(frozen=True)
class Folder:
    """A folder of the library: its name, its floor, its modules, and whom it imports how often."""

    name: str
    floor: int
    modules: list[str]
    imports: Counter[str]


def folders() -> list[Folder]:
    """Return the folders of the library from the top floor to the ground."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]

    result = list[Folder]()
    for floor, layer in enumerate(layers):
        for package in layer.split(" : "):
            modules = sorted({package} | graph.find_descendants(package))
            imports = Counter[str]()
            for module in modules:
                imported = graph.find_modules_directly_imported_by(module)
                imports.update({_folder_of(name) for name in imported})
            own = _folder_of(package)
            names = [module.removeprefix(f"{package}.") for module in modules if module != package]
            result.append(Folder(own, floor, names, imports))
    return result


def _folder_of(module: str) -> str:
    """Return the folder of a module: `data` of fedloom.data.sources.folder."""
    return module.split(".")[1]


def drawing(rows: list[Folder]) -> str:
    """Return the picture as SVG."""
    lines = [textwrap.wrap(", ".join(_without_packages(row.modules)), LETTERS) for row in rows]
    heights = [max(CELL, LINE * len(text) + 14) for text in lines]
    left = MARGIN + NAME_WIDTH + MODULES_WIDTH
    width = left + CELL * len(rows) + 2 * MARGIN
    height = HEAD + sum(heights) + MARGIN
    most = max(max(row.imports.values(), default=1) for row in rows)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
        "<title>The folders of the library, and which imports which</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(MARGIN + 8, HEAD - 14, "folder", 12, FAINT),
        _text(MARGIN + NAME_WIDTH, HEAD - 14, "modules", 12, FAINT),
    ]
    for column, row in enumerate(rows):
        x = left + CELL * column + CELL / 2 + 4
        y = HEAD - 8
        turned = f'transform="rotate(-55 {x} {y})"'
        parts.append(_text(x, y, row.name, 12, INK, turned))

    top = HEAD
    for number, (row, text, tall) in enumerate(zip(rows, lines, heights, strict=True)):
        # the floor, and the folder's name and modules
        parts.append(
            f'<rect x="{MARGIN}" y="{top}" width="{width - 2 * MARGIN}" height="{tall}" '
            f'fill="{FLOORS[row.floor % 2]}"/>'
        )
        middle = top + tall / 2
        parts.append(_text(MARGIN + 8, middle + 5, row.name, 14, INK, 'font-weight="bold"'))
        for line, words in enumerate(text):
            y = middle + 4 + LINE * (line - (len(text) - 1) / 2)
            parts.append(_text(MARGIN + NAME_WIDTH, y, words, 11, FAINT))

        # its row of the matrix
        for column, other in enumerate(rows):
            x = left + CELL * column + CELL / 2
            count = row.imports[other.name]
            if column == number:
                parts.append(
                    f'<rect x="{x - 4}" y="{middle - 4}" width="8" height="8" fill="{DIAGONAL}"/>'
                )
            elif count:
                radius = SMALLEST_DOT + (LARGEST_DOT - SMALLEST_DOT) * math.sqrt(count / most)
                tip = f"{row.name} imports {other.name}: {count} modules"
                parts.append(
                    f'<circle cx="{x}" cy="{middle}" r="{radius:.1f}" fill="{DOT}">'
                    f"<title>{escape(tip)}</title></circle>"
                )
        top += tall
    return "\n".join([*parts, "</svg>", ""])


def _without_packages(modules: list[str]) -> list[str]:
    """Leave out modules that hold others: `sources`, where `sources.folder` is named."""
    return [name for name in modules if not any(o.startswith(f"{name}.") for o in modules)]


def _text(x: float, y: float, words: str, size: int, colour: str, more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" {more}>{escape(words)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawing(folders()), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
