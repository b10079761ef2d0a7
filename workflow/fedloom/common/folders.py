"""Read files and folders of the user: circular links, pipes and files without text are errors."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from fedloom.common.errors import FedLoomError

MOST_TEXT = 4 * 2**20  # bytes of a file that people write


def walk(
    folder: str, above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, list[str], list[os.DirEntry]]]:
    """Yield `folder` and every folder below it, each with its subfolders and its other entries.

    Names are sorted and hidden ones left out. Links are followed, unless one leads back to a folder
    that leads here; `above` holds the devices and inodes of these folders.
    """
    folders, others, path = [], [], folder
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
        for entry in entries:
            path = entry.path
            if not entry.name.startswith("."):
                (folders if entry.is_dir() else others).append(entry)
    except OSError as error:
        raise FedLoomError(f"{printable(path)}: cannot be listed ({error.strerror})") from None
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise FedLoomError(f"{printable(folder)}: a link that leads back up; remove it")
    names = [entry.name for entry in folders]
    yield folder, names, others
    for name in names:
        yield from walk(f"{folder}/{name}", above | {here})


def check_usable(folder: Path) -> None:
    """Check that a folder is there and can be written to, or can be made."""
    if folder.is_symlink() and not folder.exists():
        raise FedLoomError(
            f"{folder}: a link to {folder.readlink()}, which is missing; make that folder, or "
            "remove the link"
        )
    if folder.exists() and not folder.is_dir():
        raise FedLoomError(f"{folder}: must be a folder, got a file; move it away")
    nearest = folder if folder.exists() else folder.absolute().parent
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise FedLoomError(f"{nearest}: cannot be written to")


def is_folder(path: str | Path) -> bool:
    """Return True if there is a folder; no path, however odd, makes it raise."""
    try:
        return Path(path).is_dir()
    except OSError:  # a name that is too long
        return False


def check_regular(path: str) -> None:
    """Raise an OSError for all but a file that can be read to its end."""
    if not S_ISREG(Path(path).stat().st_mode):
        raise OSError("must be a regular file, got a folder, pipe, socket or device")


def read_text(path: Path) -> str:
    """Return the text of a file that people write: YAML, TOML, Python; at most MOST_TEXT bytes."""
    try:
        check_regular(str(path))
        if Path(path).stat().st_size > MOST_TEXT:
            raise FedLoomError(f"{path}: larger than {MOST_TEXT // 2**20} MiB; name another file")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FedLoomError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FedLoomError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None


def read_python(path: Path) -> ast.Module:
    """Return the syntax tree of a file of Python."""
    try:
        return ast.parse(read_text(path), str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FedLoomError(f"{path}: not valid Python: {error}") from None


def printable(text: str) -> str:
    """Return a name as a line of a log can show it: escaped where it is not plain text."""
    return text if text.isprintable() else ascii(text)
