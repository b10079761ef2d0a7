"""Archives of data sets: unpacked as a whole, or refused."""

import gzip
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from fedloom.common.errors import FedLoomError

PIECE = 1 << 20  # bytes read at once
# a file with members, an empty one, and the two marks of one that was meant to span several files
ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"PK00")
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    EOFError,
)


def unpack(file: Path, into: Path, trusted: bool) -> list[str]:
    """Unpack an archive and return the top-level names in it.

    Args:
        trusted: its digest was compared; else a tar archive is read to its end for its own
            checksums, which tarfile would not do.

    Raises:
        FedLoomError: the archive is broken; then it is deleted, so that another try fetches it
            anew. Or a member would lie outside the folder, is encrypted or compressed in an unknown
            way, or cannot be written.
    """
    with file.open("rb") as stream:
        is_zip = stream.read(4) in ZIP
    try:
        names = _unzip(file, into) if is_zip else _untar(file, into, trusted)
    except tarfile.FilterError as error:
        raise _by_hand(file, into, error) from None
    except DAMAGE as error:
        file.unlink()
        raise FedLoomError(f"{file}: cannot be unpacked ({error}); run it again") from None
    except RuntimeError as error:
        raise _by_hand(file, into, error) from None
    except OSError as error:
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
        FedLoomError: a member would lie outside the folder.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        # the index of an archive within a member is taken for the file's own where that is cut off
        if not all(member.filename for member in members) or (
            members and min(member.header_offset for member in members) not in (0, 4)
        ):
            raise zipfile.BadZipFile("its index is broken or cut off")
        _check_inside([member.filename for member in members], file, into)
        archive.extractall(into)
        return archive.namelist()


def _untar(file: Path, into: Path, trusted: bool) -> list[str]:
    """Unpack a tar archive and return the names in it.

    Raises:
        tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError: it is broken.
        tarfile.FilterError: a link leads out of the folder, or a member is no file.
        FedLoomError: a member would lie outside the folder.
    """
    if not trusted:
        _check_tar(file)
    with tarfile.open(file) as archive:
        names = archive.getnames()
        _check_inside(names, file, into)
        archive.extractall(into, filter="data")
    return names


def _check_inside(names: list[str], file: Path, into: Path) -> None:
    """Check that no member would lie outside the folder, before the first one is written.

    Raises:
        FedLoomError: one would; zipfile would put it into the folder, under another name.
    """
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise _by_hand(file, into, f"{name!r} would lie outside the folder")


def _by_hand(file: Path, into: Path, reason: object) -> FedLoomError:
    """Return the error that leaves it to a person what becomes of an archive."""
    return FedLoomError(
        f"{file}: cannot be unpacked ({reason}); if it is what you expect, unpack it by hand into "
        f"{into} and run `fedloom data check`, or else delete it and run again"
    )


def _check_tar(file: Path) -> None:
    """Read an archive to its end; tarfile takes a broken header for the end, and so a part for all.

    Raises:
        tarfile.ReadError: there are no two blocks of zeros at the end.
        zlib.error, gzip.BadGzipFile, EOFError: the compressed stream is broken.
    """
    with file.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(file) if compressed else file.open("rb") as stream:
        last = b""
        while piece := stream.read(PIECE):
            last = (last + piece)[-2 * tarfile.BLOCKSIZE :]
    if last != bytes(2 * tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it ends early")
    with tarfile.open(file) as archive:
        archive.getmembers()
        seen = archive.offset
    with gzip.open(file) if compressed else file.open("rb") as stream:
        stream.seek(seen)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("a header is broken")
