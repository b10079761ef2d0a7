"""Locate the files that ship with FedLoom, and resolve the paths of a config."""

import os
from glob import escape, glob
from pathlib import Path
from shlex import quote

_PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY = _PACKAGE.parent  # the folder that holds the package fedloom
_BUNDLE = _PACKAGE / "bundle"  # of an installed package: the checkout's files, see pyproject.toml
ROOT = _BUNDLE if _BUNDLE.is_dir() else LIBRARY.parent
SNAKEFILE = ROOT / "Snakefile"


def plugin_folders() -> list[Path]:
    """Return the folder of the plugins that ship, and `plugins` of the current folder."""
    shipped = ROOT / "plugins"
    own = Path("plugins").resolve()
    return [shipped, own] if own.is_dir() and own != shipped else [shipped]


def resource(path: str) -> Path:
    """Resolve a path of the config: from the current folder, or if it is missing there, of ROOT."""
    own = Path.cwd() / os.path.expanduser(path)  # noqa: PTH111
    shipped = ROOT / path
    return own if os.access(own, os.F_OK) or not os.access(shipped, os.F_OK) else shipped


def matching(patterns: str | list[str]) -> list[Path]:
    """List the files that a pattern or a list of patterns names, sorted within each pattern.

    A folder or file that is there by a name such as run[1] is meant literally.
    """
    paths = map(resource, [patterns] if isinstance(patterns, str) else patterns)
    found = (glob(_literal(path), recursive=True) for path in paths)  # noqa: PTH207
    return [file for files in found for file in sorted(map(Path, files))]


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
