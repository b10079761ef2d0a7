"""Locate the files that ship with FedLoom, and resolve the paths of a config."""

import os
from glob import escape, glob
from pathlib import Path
from shlex import quote

_PACKAGE = Path(__file__).resolve().parents[1]
# the folder that holds the package fedloom
LIBRARY = _PACKAGE.parent
# an installed package holds the checkout's other files in this folder (see hatch_build.py)
_BUNDLE = _PACKAGE / "bundle"
ROOT = _BUNDLE if _BUNDLE.is_dir() else LIBRARY.parent
SNAKEFILE = ROOT / "Snakefile"


def plugin_folders() -> list[Path]:
    """Return the folder of the plugins that ship, and the folder `plugins` here if it exists."""
    shipped = ROOT / "plugins"
    own = Path("plugins").resolve()
    if own.is_dir() and own != shipped:
        return [shipped, own]
    return [shipped]


def resource(path: str) -> Path:
    """Return the file that a path of the config means.

    The path is relative to the current folder. If it exists only in ROOT, it is relative to ROOT.
    """
    own = Path.cwd() / os.path.expanduser(path)  # noqa: PTH111
    shipped = ROOT / path
    if not os.access(own, os.F_OK) and os.access(shipped, os.F_OK):
        return shipped
    return own


def matching(patterns: str | list[str]) -> list[Path]:
    """List the files that glob patterns match, sorted within each pattern.

    If a folder or file exists under a name such as run[1], that part of a pattern is no pattern.
    """
    if isinstance(patterns, str):
        patterns = [patterns]

    files = list[Path]()
    for pattern in patterns:
        found = glob(_literal(resource(pattern)), recursive=True)  # noqa: PTH207
        files += sorted(map(Path, found))
    return files


def _literal(path: Path) -> str:
    """Return a pattern; its first parts are escaped, as far as they exist exactly as written."""
    there = Path(path.anchor)
    parts = list(path.parts[1:])
    while parts and os.access(there / parts[0], os.F_OK):
        there /= parts.pop(0)
    return str(Path(escape(str(there)), *parts))


def in_shell(path: Path) -> str:
    """Return a path, quoted for a shell command.

    Snakemake formats the command, so braces are doubled.
    """
    return quote(str(path)).replace("{", "{{").replace("}", "}}")
