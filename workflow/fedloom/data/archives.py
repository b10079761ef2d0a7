"""Unpack archives of data sets: only their plain files and folders, without owners or permissions.

Links are refused. The filters of `tarfile` would let them lead out of the folder (CVE-2025-4517),
and no data set needs one.

An archive is unpacked into a hidden folder. When all its files are there, they are moved to their
places. A refused or damaged archive therefore leaves nothing behind.
"""

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from fedloom.common.errors import FedLoomError, in_words

# bytes that are read at once
PIECE = 1 << 20
# bytes that a member counts in addition to its content, if the recipe does not state all bytes:
# the size of a header in a tar archive
OF_MEMBER = 512
# types of headers that tarfile reads into memory as a whole
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
# the share of the free disk that an archive may fill
SHARE = 0.95


@dataclass(frozen=True)
class UnpackLimits:
    """How much an archive may unpack to. Images hardly shrink in an archive.

    Attributes:
        growth, small: if the recipe does not state its bytes, an archive may unpack to `growth`
            times its own size or to `small` bytes, whichever is more.
        members: highest number of files and folders.
    """

    growth: int = 20
    small: int = 100 << 20
    members: int = 5_000_000


USUAL_UNPACK_LIMITS = UnpackLimits()


class _Member(NamedTuple):
    """A file or a folder of an archive."""

    name: str
    size: int
    # False for links, devices and sparse files
    plain: bool
    # opens the file; None for a folder
    opened: Callable[[], IO[bytes] | None] | None


class _BoundedHeader(tarfile.TarInfo):
    """A member of a tar archive that raises a RuntimeError if its extended header is too large.

    tarfile reads such a header into memory as a whole.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in EXTENDED and self.size > PIECE:
            raise RuntimeError(f"it has a header of {self.size:,} bytes, which no data set needs")
        return super()._proc_member(archive)  # pyright: ignore[reportAttributeAccessIssue]


def unpack(
    file: Path, into: Path, most: int | None = None, limits: UnpackLimits = USUAL_UNPACK_LIMITS
) -> list[str]:
    """Unpack a .zip or a tar archive and return the top-level names in it.

    It may unpack to `most` bytes; None: to what `limits` allow. Any failure is a FedLoomError:

    - A damaged archive is deleted, so that the next call downloads it again.
    - An archive with links, paths out of the folder, encrypted members or too many bytes is kept.
      It is also kept if its files cannot be written.
    """
    aside = into / f".{file.name}.unpacking"
    try:
        into.mkdir(parents=True, exist_ok=True)
        # a call that was killed may have left it behind
        _remove(aside)

        with _opened(file) as archive:
            members = [*_checked(_members(archive), file, into, most, limits)]
            aside.mkdir()
            _write(members, aside)
        _move(aside, into)
    except Exception as error:
        # readers of damaged archives raise many kinds of exceptions
        reason = f"{file}: cannot be unpacked into {into} ({in_words(error)})"
        is_refused = isinstance(error, RuntimeError)
        cannot_be_written = getattr(error, "errno", None) is not None
        if is_refused or cannot_be_written:
            raise FedLoomError(
                f"{reason}; remove the cause, or unpack the archive by hand"
            ) from None
        file.unlink()
        raise FedLoomError(f"{reason}; run it again") from None
    finally:
        _remove(aside)

    first_parts = [PurePosixPath(member.name).parts[:1] for member in members]
    return sorted({part for parts in first_parts for part in parts})


def _opened(file: Path) -> zipfile.ZipFile | tarfile.TarFile:
    """Open an archive by the format of its suffix."""
    if file.suffix == ".zip":
        return zipfile.ZipFile(file)
    return tarfile.open(file, tarinfo=_BoundedHeader)


def _remove(folder: Path) -> None:
    """Remove a folder if it exists."""
    if folder.is_dir():
        shutil.rmtree(folder)


def _members(archive: zipfile.ZipFile | tarfile.TarFile) -> Iterator[_Member]:
    """Yield every member; raise the error of the format if the archive is damaged.

    tarfile alone takes a broken header for the end, and ignores the checksum of a compressed
    stream.
    """
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():
            # with a broken length, a comment contains the next entry; with a broken name, a file
            # looks like a folder
            if b"PK\1\2" in info.comment or (info.is_dir() and info.file_size):
                raise zipfile.BadZipFile(f"the entry of {info.filename!r} is broken")

            # the file's mode tells links from plain files
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            opened = None if info.is_dir() else partial(archive.open, info)
            yield _Member(info.filename, info.file_size, plain, opened)
        return

    for info in archive:
        # a sparse file of a few bytes may state any size, and would be written as zeros
        plain = (info.isreg() or info.isdir()) and not info.issparse()
        opened = None if info.isdir() else partial(archive.extractfile, info)
        yield _Member(info.name, info.size, plain, opened)

    # an archive ends with zeros; reading the rest of a compressed stream compares its checksum
    stream: Any = archive.fileobj
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("a header is broken")
    while stream.read(PIECE):
        pass


def _checked(
    members: Iterable[_Member], file: Path, into: Path, most: int | None, limits: UnpackLimits
) -> Iterator[_Member]:
    """Yield the members that may be written; raise a RuntimeError at the first that may not.

    Refused are members that are not plain, paths out of the folder `into` or through a link that
    already lies there, and too many bytes or files. Members are checked one by one, so that a long
    archive is refused before it is read to its end.
    """
    stated = most or max(limits.small, limits.growth * file.stat().st_size)
    free = int(SHARE * shutil.disk_usage(into).free)
    size = 0
    looked_at = set[Path]()
    for count, member in enumerate(members, 1):
        path = PurePosixPath(member.name)
        if not member.plain:
            raise RuntimeError(f"{member.name!r} is a link, a device or a sparse file")
        if path.is_absolute() or ".." in path.parts:
            raise RuntimeError(f"{member.name!r} would lie outside the folder")

        # each folder is checked only once: a check for every file would take as long as writing it
        folder = into / path
        if member.opened is not None:
            folder = into / path.parent
        if folder not in looked_at:
            looked_at.add(folder)
            if folder.resolve() != into.resolve() / folder.relative_to(into):
                raise RuntimeError(f"{member.name!r} would be written through a link in {into}")

        # count the bytes so far
        size += member.size
        if most is None:
            size += OF_MEMBER
        if size > stated or count > limits.members:
            raise RuntimeError(
                f"it holds more than {stated:,} bytes or {limits.members:,} files; if it is to, "
                "state its bytes in the recipe, as unpacked_bytes of the archive"
            )
        if size > free:
            raise RuntimeError(f"it holds more than {free:,} bytes, which the disk has left")
        yield member


def _write(members: list[_Member], aside: Path) -> None:
    """Write the members into an empty folder."""
    for member in members:
        path = aside / member.name
        if member.opened is None:
            path.mkdir(parents=True, exist_ok=True)
            continue

        path.parent.mkdir(parents=True, exist_ok=True)
        content = member.opened()
        if content is not None:
            with content, path.open("wb") as written:
                shutil.copyfileobj(content, written, PIECE)


def _move(source: Path, into: Path) -> None:
    """Move the content of a folder into another; files and links of the same name are replaced."""
    for entry in source.iterdir():
        target = into / entry.name
        if entry.is_dir() and target.exists():
            _move(entry, target)
        else:
            entry.replace(target)
