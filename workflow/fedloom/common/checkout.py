"""Where the files lie that ship with FedLoom, and what a path in the config means."""

import os
from pathlib import Path
from shlex import quote

from fedloom.common.errors import FedLoomError

_PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY = _PACKAGE.parent  # the folder that holds the package fedloom
_BUNDLE = _PACKAGE / "bundle"  # of an installed package: the checkout's files, see pyproject.toml
ROOT = _BUNDLE if _BUNDLE.is_dir() else LIBRARY.parent
SNAKEFILE = ROOT / "Snakefile"


def plugin_folders() -> list[Path]:
    """Return the folder of the plugins that ship, and `plugins` of the current folder."""
    shipped, own = ROOT / "plugins", Path("plugins").resolve()
    return [shipped, own] if own.is_dir() and own != shipped else [shipped]


def resource(path: str) -> Path:
    """Resolve a path of the config; `~` is the home folder.

    A relative path starts at the current folder. If nothing is there, but a file or folder of this
    path ships with FedLoom, it is that one.
    """
    if "\0" in path:
        raise FedLoomError(f"{path!r}: a path cannot hold the character NUL")
    try:
        own = Path.cwd() / Path(path).expanduser()
    except RuntimeError:
        raise FedLoomError(f"{path}: no such user, or one without a home folder") from None
    shipped = ROOT / path
    return own if os.access(own, os.F_OK) or not os.access(shipped, os.F_OK) else shipped


def matching(patterns: str | list[str]) -> list[Path]:
    """List the files that a pattern or a list of patterns names, sorted within each pattern."""
    files = []
    for path in map(resource, [patterns] if isinstance(patterns, str) else patterns):
        try:
            files += sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        except (ValueError, IndexError, OSError) as error:
            raise FedLoomError(f"{path}: no pattern of files ({error})") from None
    return files


def in_shell(path: Path) -> str:
    """Return a path for a shell command that Snakemake formats, where braces are fields."""
    return quote(str(path)).replace("{", "{{").replace("}", "}}")
