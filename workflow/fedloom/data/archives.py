"""Unpack archives of data sets as a whole, or refuse them.

Only plain files and folders are written. Links, devices, owners and permissions of an archive never
reach the disk: tarfile's filters let links out of the folder (CVE-2025-4517), and no data set needs
one.
"""

import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from fedloom.common.errors import FedLoomError

PIECE = 1 << 20  # bytes read at once
# images hardly shrink, and the largest archive of a recipe holds 0.7 million
GROWTH = 100  # an archive may unpack to this many times its own size,
SMALL = 1 << 30  # or to this many bytes,
MEMBERS = 5_000_000  # files and folders at most
# a file with members, an empty one, and the two marks of one that was meant to span several files
ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"PK00")
GZIP = b"\x1f\x8b"
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,  # such as a name that cannot be decoded
    OverflowError,  # a header with a size that no memory has
)


class Member(NamedTuple):
    """A file or a folder of an archive; `content` opens a file, and is None for a folder."""

    name: str
    size: int
    plain: bool
    content: Callable[[], IO[bytes] | None] | None


def unpack(file: Path, into: Path) -> list[str]:
    """Unpack a zip or tar archive and return the top-level names in it.

    A broken archive is deleted, so that another try fetches it anew. It stays where it has links,
    paths out of the folder, encrypted members or improbably many bytes, or cannot be written.
    """
    with file.open("rb") as stream:
        start = stream.read(4)
    try:
        if start in ZIP:
            with zipfile.ZipFile(file) as zipped:
                return _write(_checked(_zipped(zipped), file), into)
        compressed = start.startswith(GZIP)
        with tarfile.open(file, "r:gz" if compressed else "r:") as tarred:
            members = _checked(_tarred(tarred), file)
            _read_to_end(file, compressed, tarred.offset)
            return _write(members, into)
    except DAMAGE as error:
        raise _broken(file, error) from None
    except RuntimeError as error:  # zipfile's, of encrypted members too
        raise FedLoomError(
            f"{file}: cannot be unpacked ({error}); if it is what you expect, unpack it by hand "
            f"into {into} and run `fedloom data check`, or else delete it and run again"
        ) from None
    except OSError as error:
        if error.errno is None:  # of bz2 and gzip, about damage
            raise _broken(file, error) from None
        raise FedLoomError(
            f"{file}: cannot be unpacked into {into} ({error.strerror or error}); mend that and "
            "run it again"
        ) from None


def _broken(file: Path, reason: object) -> FedLoomError:
    """Delete a broken archive, and return the error that says so."""
    file.unlink()
    return FedLoomError(f"{file}: cannot be unpacked ({reason}); run it again")


def _zipped(archive: zipfile.ZipFile) -> Iterator[Member]:
    """Yield the members of a zip archive, in which a file's mode tells that it is a link."""
    infos = archive.infolist()
    # where the index is cut off, zipfile takes that of an archive within a member
    offsets = [info.header_offset for info in infos]
    stream: Any = archive.fp
    stream.seek(-12 - len(archive.comment), os.SEEK_END)
    count = int.from_bytes(stream.read(2), "little")  # 65535 stands for more than it can say
    if min(offsets, default=0) not in (0, 4) or count not in (len(infos), 65535):
        raise zipfile.BadZipFile("its index is broken or cut off")
    for info in infos:
        plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
        content = None if info.is_dir() else partial(archive.open, info)
        yield Member(info.filename, info.file_size, plain, content)


def _tarred(archive: tarfile.TarFile) -> Iterator[Member]:
    for info in archive:
        content = None if info.isdir() else partial(archive.extractfile, info)
        yield Member(info.name, info.size, info.isreg() or info.isdir(), content)


def _read_to_end(file: Path, compressed: bool, end: int) -> None:
    """Check that a tar archive ends with zeros at byte `end`, where tarfile saw its end.

    tarfile takes a broken header for the end, and ignores the checksum behind a compressed stream.
    """
    with gzip.open(file) if compressed else file.open("rb") as stream:
        stream.seek(end)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("a header is broken")
        while stream.read(PIECE):
            pass


def _checked(members: Iterable[Member], file: Path) -> list[Member]:
    """Return all members; raise a RuntimeError if one is unfit to unpack, or they are too many."""
    checked, size, most = [], 0, max(SMALL, GROWTH * file.stat().st_size)
    for member in members:
        path = PurePosixPath(member.name)
        if not member.plain:
            raise RuntimeError(f"{member.name!r} is a link or a device")
        if path.is_absolute() or ".." in path.parts:
            raise RuntimeError(f"{member.name!r} would lie outside the folder")
        if "\0" in member.name or member.size < 0:
            raise RuntimeError(f"{member.name!r} has a name or size that no file can have")
        checked.append(member)
        size += member.size
        if size > most or len(checked) > MEMBERS:
            raise RuntimeError(f"it holds more than {most} bytes or {MEMBERS} files")
    return checked


def _write(members: list[Member], into: Path) -> list[str]:
    """Write the members and return their top-level names; follow no link that was there before."""
    top, made = into.resolve(), set[Path]()
    for member in members:
        path = top / member.name
        folder = path if member.content is None else path.parent
        if folder not in made:  # a look for each file would take as long as writing it
            if folder.resolve() != folder:
                raise RuntimeError(f"{member.name!r} would be written through a link")
            folder.mkdir(parents=True, exist_ok=True)
            made.add(folder)
        if member.content is None:
            continue
        path.unlink(missing_ok=True)  # of an earlier try, or a link
        content = member.content()
        assert content is not None, "a plain file"
        with content, path.open("xb") as written:
            shutil.copyfileobj(content, written, PIECE)
    return sorted({parts[0] for m in members if (parts := PurePosixPath(m.name).parts)})
