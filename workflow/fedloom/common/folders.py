"""Read the user's files and folders; circular links, pipes and non-text files are errors."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from fedloom.common.errors import FedLoomError

# the most bytes of a file that people write
MOST_TEXT = 4 * 2**20


def walk(
    folder: str, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, list[str], list[os.DirEntry]]]:
    """Yield `folder` and every folder below it, each with its subfolders and its other entries.

    Names are sorted, and hidden names are left out. Links are followed. `above` holds the real
    paths of the folders that led here.

    Raises:
        FedLoomError: a folder cannot be listed, or a link leads back to a folder above.
    """
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
        shown = [entry for entry in entries if not entry.name.startswith(".")]
        names = [entry.name for entry in shown if entry.is_dir()]
    except OSError as error:
        path = printable(str(error.filename))
        raise FedLoomError(f"{path}: cannot be listed ({error.strerror})") from None

    # a folder that contains itself would never end
    here = os.path.realpath(folder)
    if here in above:
        raise FedLoomError(f"{printable(folder)}: a link that leads back up; remove it")

    yield folder, names, [entry for entry in shown if not entry.is_dir()]
    for name in names:
        yield from walk(f"{folder}/{name}", above | {here})


def check_writable(folder: Path) -> None:
    """Raise a FedLoomError unless a folder is writable, or can be created."""
    # A missing folder would be created in its parent. Where a link leads nowhere, no folder can be
    # created.
    nearest = folder
    if not folder.exists() and not folder.is_symlink():
        nearest = folder.absolute().parent

    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise FedLoomError(f"{folder}: must be a folder that can be written to; move it away")


def is_folder(path: str | Path) -> bool:
    """Return whether a path is a folder; never raises, even for a malformed path."""
    return os.path.isdir(path)  # noqa: PTH112


def named_folder(folder: Path, key: str) -> Path:
    """Return a folder that a key of the config names; raise a FedLoomError if it is missing."""
    if not is_folder(folder):
        raise FedLoomError(f"{printable(str(folder))}: no such folder, but {key} names it")
    return folder


def check_regular(path: str) -> None:
    """Raise an OSError unless a path is a regular file: a pipe, for example, may never end."""
    if not S_ISREG(Path(path).stat().st_mode):
        raise OSError("must be a regular file, got a folder, pipe, socket or device")


def read_text(path: Path) -> str:
    """Return the text of a file that people write: YAML, TOML, Python.

    Raises:
        FedLoomError: the file cannot be read, is not UTF-8, or has more than MOST_TEXT bytes.
    """
    try:
        check_regular(str(path))
        size = Path(path).stat().st_size
        if size > MOST_TEXT:
            most = f"must be at most {MOST_TEXT // 2**20} MiB of text"
            raise FedLoomError(f"{path}: {most}, got {size:,} bytes; name another file")
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FedLoomError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FedLoomError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None


def read_python(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file; raise a FedLoomError if it is not valid Python."""
    try:
        return ast.parse(read_text(path), str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FedLoomError(f"{path}: not valid Python: {error}") from None


def printable(text: str) -> str:
    """Return a name in a form that a log can show: if a character is unprintable, with escapes."""
    if text.isprintable():
        return text
    return ascii(text)
