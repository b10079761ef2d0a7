"""Write files that are whole or absent, tables with checksums, and JSON with one spelling."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from safetensors import SafetensorError

from fedloom.common.errors import FedLoomError, one_line, shorten
from fedloom.common.json_types import JsonDict
from fedloom.common.temporary import remove, sweep, temporary_name

if TYPE_CHECKING:
    import pyarrow as pa

# The key in a table's metadata under which the digest of its file stands. While the digest is
# computed, UNSEALED stands there.
SEAL = b"fedloom:sha256"
UNSEALED = b"0" * 64
# the bytes before the digest in a footer: the key, and Thrift's mark for a text of 64 bytes
BEFORE_DIGEST = SEAL + b"\x18\x40"
# the number of bytes that are hashed at once
BYTES_AT_ONCE = 2**20


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; if the block succeeds, rename its file to `path`."""
    path = Path(path)
    with _beside(path) as temporary:
        # a new file has the permissions that the user's umask allows
        temporary.touch(exist_ok=False)
        permissions = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary

        # safetensors writes files that only their owner can read
        temporary.chmod(permissions)
        temporary.replace(path)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path` for intermediate files, and remove it at the end."""
    with _beside(Path(path)) as folder:
        folder.mkdir()
        yield folder


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield an unused path beside `path`; at the end, remove the file or folder that is there.

    If writing there fails, raise a FedLoomError about `path`. An error about another file is passed
    on as it is.
    """
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent.resolve())
        try:
            yield temporary
        finally:
            remove(temporary)

    # An error of writing there names one of these: `path`, a folder above it, the temporary path,
    # or a file below the temporary path.
    except (OSError, SafetensorError) as error:
        blamed = Path(getattr(error, "filename", None) or path)
        if blamed not in (path, *path.parents) and temporary not in (blamed, *blamed.parents):
            raise

        reason = one_line(getattr(error, "strerror", None) or error)
        raise FedLoomError(f"{path}: cannot be written ({reason})") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(path: Path, table: "pa.Table") -> None:
    """Write a table as Parquet, whole or not at all.

    The file has a checksum for every page, and a digest of the whole file. Checksums of pages are
    not enough: the footer names the columns, and says where the pages of each column lie. A flipped
    bit in the footer could rename a column, or show the numbers of another column under its name.
    """
    # imported here, since it takes 0.1 s and Snakemake's own process does not need it
    import pyarrow.parquet as pq

    with atomic_write(path) as temporary:
        # write the whole file, with zeros in the place of its digest
        with pq.ParquetWriter(temporary, table.schema, write_page_checksum=True) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({SEAL: UNSEALED})

        # put the digest of that file in the place of the zeros
        with temporary.open("r+b") as file:
            place = _place_of_seal(file)
            assert place is not None, "the writer has just written it"
            file.seek(place)
            assert file.read(len(UNSEALED)) == UNSEALED, "else another value would be overwritten"
            digest = _digest(file, place)
            file.seek(place)
            file.write(digest)


def read_table(path: Path, columns: "pa.Schema | None" = None) -> "pa.Table":
    """Read a Parquet table, and verify its digest and the checksums of its pages.

    The table must have all `columns`, and may have more. A column must hold the same kind of value
    as in `columns`: integers, numbers, text or truth values.

    Raises:
        FedLoomError: the file is missing or damaged, or a column is missing or of another type.
    """
    import pyarrow.parquet as pq

    # open the file only once: between two openings by its name, it could be replaced
    with _opened(path) as file:
        _check_seal(path, file)
        table = pq.ParquetFile(file, page_checksum_verification=True).read()
        _check_columns(path, table.schema, columns)

        # the digest belongs to this file, not to the table
        metadata = table.schema.metadata or {}
        kept = {key: value for key, value in metadata.items() if key != SEAL}
        return table.replace_schema_metadata(kept or None)


def check_table(path: Path, columns: "pa.Schema | None") -> None:
    """Check the digest and the columns of a Parquet table as `read_table` does, but read no rows.

    This is for a reader that reads the rows later, such as DuckDB.
    """
    import pyarrow.parquet as pq

    with _opened(path) as file:
        _check_seal(path, file)
        _check_columns(path, pq.read_schema(file), columns)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a Parquet file, but none of its rows."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        _check_seal(path, file)
        metadata = pq.read_schema(file).metadata or {}
        return {key.decode(): value.decode() for key, value in metadata.items() if key != SEAL}


def _place_of_seal(file: "BinaryIO | pa.NativeFile") -> int | None:
    """Return the position in a Parquet file at which its digest begins; None if it has no digest.

    The digest is in the footer.
    """
    # a Parquet file ends with its footer, the footer's length in four bytes, and PAR1
    file.seek(0, os.SEEK_END)
    size = file.tell()
    file.seek(max(size - 8, 0))
    start = size - 8 - int.from_bytes(file.read(4), "little")
    if start < 0:
        return None

    # the last match is the digest's: an earlier value may happen to hold these bytes too
    file.seek(start)
    place = file.read(size - 8 - start).rfind(BEFORE_DIGEST)
    if place < 0:
        return None
    return start + place + len(BEFORE_DIGEST)


def _digest(file: "BinaryIO | pa.NativeFile", place: int) -> bytes:
    """Return the sha256, in hexadecimal digits, that a file has with UNSEALED at `place`."""
    result = hashlib.sha256()

    # hash the bytes before the place
    position = 0
    file.seek(0)
    while position < place and (part := file.read(min(BYTES_AT_ONCE, place - position))):
        result.update(part)
        position += len(part)

    # hash the zeros, and the bytes after the place
    result.update(UNSEALED)
    file.seek(place + len(UNSEALED))
    while part := file.read(BYTES_AT_ONCE):
        result.update(part)
    return result.hexdigest().encode()


def _check_seal(path: Path, file: "pa.NativeFile") -> None:
    """Raise a FedLoomError if a file does not match its digest.

    Tables that earlier versions wrote have no digest, and pass. The file is left at its beginning.
    """
    place = _place_of_seal(file)
    if place is not None:
        file.seek(place)
        if file.read(len(UNSEALED)) != _digest(file, place):
            raise FedLoomError(
                f"{path}: it does not match the digest in its footer; delete it and run again"
            )
    file.seek(0)


def _check_columns(path: Path, schema: "pa.Schema", columns: "pa.Schema | None") -> None:
    """Raise a FedLoomError if a table lacks one of the columns, or holds other values in it."""
    for column in columns or ():
        if schema.names.count(column.name) != 1:
            found = shorten(", ".join(schema.names))
            raise FedLoomError(
                f"{path}: must have one column '{column.name}', got {found}; delete it and run "
                "again"
            )

        # a number may have any width
        wanted = _type_name(column.type)
        found = _type_name(schema.field(column.name).type)
        if found != wanted:
            raise FedLoomError(
                f"{path}: column '{column.name}' must hold {wanted}, got {found}; delete it and "
                "run again"
            )


def _type_name(arrow_type: "pa.DataType") -> str:
    """Return the kind of value that an Arrow type stands for, however many bits it has."""
    from pyarrow import types

    # Arrow's dictionary is only another way to store values of its value type
    if types.is_dictionary(arrow_type):
        return _type_name(arrow_type.value_type)

    tests = {
        "integers": types.is_integer,
        "numbers": types.is_floating,
        "truth values": types.is_boolean,
        "text": lambda each: types.is_string(each) or types.is_large_string(each),
    }
    for name, test in tests.items():
        if test(arrow_type):
            return name
    return str(arrow_type)


@contextmanager
def _opened(path: Path) -> Iterator["pa.NativeFile"]:
    """Yield an open Parquet file; if opening or reading it fails, raise a FedLoomError."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file:
            yield file
    except FileNotFoundError:
        raise FedLoomError(f"{path}: does not exist; run again to make it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FedLoomError(
            f"{path}: is damaged or incomplete ({one_line(error)}); delete it and run again"
        ) from None


def canonical(value: object) -> str:
    """Return JSON with one spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_json(path: Path) -> JsonDict:
    """Read a JSON object that FedLoom wrote; raise a FedLoomError if it is missing or damaged."""
    try:
        return {**json.loads(Path(path).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError) as error:
        raise FedLoomError(
            f"{path}: is missing, damaged or incomplete ({error}); delete it and run again"
        ) from None
