"""Locate the files that ship with FedLoom, and resolve the paths of a config."""

import os
from glob import escape, glob
from pathlib import Path
from shlex import quote

_PACKAGE = Path(__file__).resolve().parents[1]
# the folder that holds the package fedloom
LIBRARY = _PACKAGE.parent
# the folder of the checkout's files, which an installed package has within it (see hatch_build.py)
_BUNDLE = _PACKAGE / "bundle"
ROOT = _BUNDLE if _BUNDLE.is_dir() else LIBRARY.parent
SNAKEFILE = ROOT / "Snakefile"


def plugin_folders() -> list[Path]:
    """Return the folder of the plugins that ship, and `plugins` of the current folder."""
    shipped = ROOT / "plugins"
    own = Path("plugins").resolve()
    if own.is_dir() and own != shipped:
        return [shipped, own]
    return [shipped]


def resource(path: str) -> Path:
    """Resolve a path of the config: from the current folder, or if it is missing there, of ROOT."""
    own = Path.cwd() / os.path.expanduser(path)  # noqa: PTH111
    shipped = ROOT / path
    if not os.access(own, os.F_OK) and os.access(shipped, os.F_OK):
        return shipped
    return own


def matching(patterns: str | list[str]) -> list[Path]:
    """List the files that a pattern or a list of patterns names, sorted within each pattern.

    A folder or file that is there by a name such as run[1] is meant literally.
    """
    if isinstance(patterns, str):
        patterns = [patterns]

    files = list[Path]()
    for pattern in patterns:
        found = glob(_literal(resource(pattern)), recursive=True)  # noqa: PTH207
        files += sorted(map(Path, found))
    return files


def _literal(path: Path) -> str:
    """Return a pattern in which all parts are escaped that exist as they are written."""
    there = Path(path.anchor)
    parts = list(path.parts[1:])
    while parts and os.access(there / parts[0], os.F_OK):
        there /= parts.pop(0)
    return str(Path(escape(str(there)), *parts))


def in_shell(path: Path) -> str:
    """Return a path for a shell command that Snakemake formats, where braces are fields."""
    return quote(str(path)).replace("{", "{{").replace("}", "}}")
