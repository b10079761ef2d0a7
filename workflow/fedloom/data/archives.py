"""Unpack archives of data sets: only their plain files and folders, without owners or permissions.

tarfile's filters would let links out of the folder (CVE-2025-4517), and no data set needs one.
"""

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fedloom.common.errors import FedLoomError, in_words

PIECE = 1 << 20  # bytes read at once
Opened = Callable[[], IO[bytes] | None] | None


def unpack(file: Path, into: Path) -> list[str]:
    """Unpack a .zip or a tar archive and return the top-level names in it.

    A damaged archive is deleted, so that another try fetches it anew. It stays where it has links,
    paths out of the folder or encrypted members, or cannot be written.
    """
    try:
        with zipfile.ZipFile(file) if file.suffix == ".zip" else tarfile.open(file) as archive:
            members = [*_members(archive)]
            for name, opened in members:
                path = into / name
                (path.parent if opened else path).mkdir(parents=True, exist_ok=True)
                if content := opened and opened():
                    with content, path.open("wb") as written:
                        shutil.copyfileobj(content, written, PIECE)
    except Exception as error:  # of damage, whatever the format's reader raises
        stays = isinstance(error, RuntimeError) or getattr(error, "errno", None) is not None
        if not stays:
            file.unlink()
        cure = "mend that, or unpack it by hand" if stays else "run it again"
        reason = f"cannot be unpacked into {into} ({in_words(error)})"
        raise FedLoomError(f"{file}: {reason}; {cure}") from None
    return sorted({part for name, _ in members for part in PurePosixPath(name).parts[:1]})


def _members(archive: zipfile.ZipFile | tarfile.TarFile) -> Iterator[tuple[str, Opened]]:
    """Yield every member's name and what opens it, if it is a file; refuse all but plain ones.

    tarfile takes a broken header for the end, and ignores the checksum behind a compressed stream.
    """
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():  # a link is a file of another mode
            # a broken length of a comment hides the next entry, and a broken name makes a folder
            if b"PK\1\2" in info.comment or (info.is_dir() and info.file_size):
                raise zipfile.BadZipFile(f"the entry of {info.filename!r} is broken")
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            _check(info.filename, plain)
            yield info.filename, None if info.is_dir() else partial(archive.open, info)
        return
    for info in archive:
        _check(info.name, info.isreg() or info.isdir())
        yield info.name, None if info.isdir() else partial(archive.extractfile, info)
    stream: Any = archive.fileobj
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("a header is broken")
    while stream.read(PIECE):
        pass


def _check(name: str, plain: bool) -> None:
    path = PurePosixPath(name)
    if not plain:
        raise RuntimeError(f"{name!r} is a link or a device")
    if path.is_absolute() or ".." in path.parts:
        raise RuntimeError(f"{name!r} would lie outside the folder")
