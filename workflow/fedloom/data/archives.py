"""Archives of data sets: unpacked as a whole, or refused."""

import gzip
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from fedloom.common.errors import FedLoomError

PIECE = 1 << 20  # bytes read at once


def unpack(file: Path, into: Path, trusted: bool) -> list[str]:
    """Unpack an archive and return the top-level names in it.

    A member that would lie outside the folder is refused.

    Args:
        trusted: its digest was compared; else the archive is read to its end for its own checksums,
            which tarfile would not do.

    Raises:
        FedLoomError: the archive is broken. It is deleted, so that another try fetches it anew.
    """
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                archive.extractall(into)
                names = archive.namelist()
        else:
            if not trusted:
                _check_tar(file)
            with tarfile.open(file) as archive:
                archive.extractall(into, filter="data")
                names = archive.getnames()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError) as error:
        file.unlink()
        raise FedLoomError(f"{file}: cannot be unpacked ({error}); run it again") from None
    return sorted({PurePosixPath(name).parts[0] for name in names if name not in (".", "./")})


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
