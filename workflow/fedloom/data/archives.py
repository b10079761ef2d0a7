"""Archives of data sets: unpacked as a whole, or refused.

Only files and folders are written, each under a path of its own below the folder. Links, devices,
owners and permissions of an archive never reach the disk: tarfile's filters let links out of it
(CVE-2025-4517), and no data set needs one.
"""

import functools
import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from fedloom.common.errors import FedLoomError

PIECE = 1 << 20  # bytes read at once
# images hardly shrink, and the largest data set of a recipe has 0.7 million
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
    """A file or a folder of an archive."""

    name: str
    size: int
    refused: str  # why it is not unpacked; empty for a plain file or folder
    content: Callable[[], IO[bytes] | None] | None  # opens it; None for a folder


def unpack(file: Path, into: Path, trusted: bool) -> list[str]:
    """Unpack an archive and return the top-level names in it.

    Args:
        trusted: its digest was compared; else a tar archive is read to its end for its own
            checksums, which tarfile would not do.

    Raises:
        FedLoomError: the archive is broken; then it is deleted, so that another try fetches it
            anew. Or a member is a link or would lie outside the folder, is encrypted or compressed
            in an unknown way, or cannot be written; or there is more in it than is likely.
    """
    with file.open("rb") as stream:
        start = stream.read(4)
    try:
        if start in ZIP:
            names = _unzip(file, into)
        else:
            names = _untar(file, into, trusted, compressed=start.startswith(GZIP))
    except DAMAGE as error:
        raise _broken(file, error) from None
    except RuntimeError as error:
        raise _by_hand(file, into, error) from None
    except OSError as error:
        if error.errno is None:  # bz2 and gzip say so that what they read is damaged
            raise _broken(file, error) from None
        raise FedLoomError(
            f"{file}: cannot be unpacked into {into} ({error.strerror or error}); mend that and "
            "run it again"
        ) from None
    return sorted({parts[0] for name in names if (parts := PurePosixPath(name).parts)})


def _unzip(file: Path, into: Path) -> list[str]:
    """Unpack a zip archive and return the names in it; every member's checksum is compared.

    Raises:
        zipfile.BadZipFile: it is broken, or a part of an archive.
        RuntimeError: a member is encrypted or compressed in an unknown way.
        FedLoomError: a member is refused.
    """
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        # the index of an archive within a member is taken for the file's own where that is cut off
        if not all(info.filename for info in infos) or (
            infos and min(info.header_offset for info in infos) not in (0, 4)
        ):
            raise zipfile.BadZipFile("its index is broken or cut off")
        members = _checked(map(functools.partial(_zipped, archive), infos), file, into)
        return _write(members, file, into)


def _zipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """Return a member of a zip archive, in which a link is a file that its mode calls one."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    refused = "" if kind in (0, stat.S_IFREG, stat.S_IFDIR) else "is a link or a device"
    content = None if info.is_dir() else functools.partial(archive.open, info)
    return Member(info.filename, info.file_size, refused, content)


def _untar(file: Path, into: Path, trusted: bool, compressed: bool) -> list[str]:
    """Unpack a tar archive and return the names in it.

    Raises:
        tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError: it is broken.
        FedLoomError: a member is refused.
    """
    with tarfile.open(file, "r:gz" if compressed else "r:") as archive:
        members = _checked(map(functools.partial(_tarred, archive), archive), file, into)
        if not trusted:
            _check_tar(file, compressed, archive.offset)
        return _write(members, file, into)


def _tarred(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
    """Return a member of a tar archive."""
    refused = "" if info.isreg() or info.isdir() else "is a link or a device"
    content = None if info.isdir() else functools.partial(archive.extractfile, info)
    return Member(info.name, info.size, refused, content)


def _checked(members: Iterable[Member], file: Path, into: Path) -> list[Member]:
    """Return all members once each was found fit to unpack, before the first is written.

    Raises:
        FedLoomError: a member is not a plain file or folder, or would lie outside the folder; or
            there are too many of them.
    """
    checked, size, room = [], 0, max(SMALL, GROWTH * file.stat().st_size)
    for member in members:
        path = PurePosixPath(member.name)
        if member.refused:
            raise _by_hand(file, into, f"{member.name!r} {member.refused}")
        if path.is_absolute() or ".." in path.parts:
            raise _by_hand(file, into, f"{member.name!r} would lie outside the folder")
        if "\0" in member.name or member.size < 0:
            raise _by_hand(file, into, f"{member.name!r} has a name or size that no file can have")
        checked.append(member)
        size += member.size
        if size > room or len(checked) > MEMBERS:
            raise _by_hand(file, into, f"it holds more than {room} bytes or {MEMBERS} files")
    return checked


def _write(members: list[Member], file: Path, into: Path) -> list[str]:
    """Write the members and return their names.

    Raises:
        FedLoomError: a link that was there before leads a member to another place.
    """
    top, made = into.resolve(), set[Path]()
    for member in members:
        path = top / member.name
        folder = path if member.content is None else path.parent
        if folder not in made:  # a look for each file would take as long as writing it
            if folder.resolve() != folder:
                raise _by_hand(file, into, f"{member.name!r} would be written through a link")
            folder.mkdir(parents=True, exist_ok=True)
            made.add(folder)
        if member.content is None:
            continue
        path.unlink(missing_ok=True)  # what a try before this one wrote, or a link
        content = member.content()
        assert content is not None, "a plain file"
        with content, path.open("xb") as written:
            shutil.copyfileobj(content, written, PIECE)
    return [member.name for member in members]


def _broken(file: Path, reason: object) -> FedLoomError:
    """Delete a broken archive, and return the error that says so."""
    file.unlink()
    return FedLoomError(f"{file}: cannot be unpacked ({reason}); run it again")


def _by_hand(file: Path, into: Path, reason: object) -> FedLoomError:
    """Return the error that leaves it to a person what becomes of an archive."""
    return FedLoomError(
        f"{file}: cannot be unpacked ({reason}); if it is what you expect, unpack it by hand into "
        f"{into} and run `fedloom data check`, or else delete it and run again"
    )


def _check_tar(file: Path, compressed: bool, seen: int) -> None:
    """Read an archive to its end; tarfile takes a broken header for the end, and so a part for all.

    Args:
        seen: where tarfile saw the end, in bytes.

    Raises:
        tarfile.ReadError: there is no block of zeros, which ends a whole one.
        zlib.error, gzip.BadGzipFile, EOFError: the compressed stream is broken.
    """
    with gzip.open(file) if compressed else file.open("rb") as stream:
        stream.seek(seen)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("a header is broken")
        while stream.read(PIECE):  # a compressed stream has its checksum at the end
            pass
