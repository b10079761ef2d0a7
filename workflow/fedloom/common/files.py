"""Files that are either whole or absent, tables with checksums, and JSON with one spelling."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from safetensors import SafetensorError

from fedloom.common.errors import FedLoomError, one_line, shortened
from fedloom.common.temporary import remove, sweep, temporary_name

if TYPE_CHECKING:
    import pyarrow as pa

# The key of a table's metadata that holds the digest of its file, and its value in that digest
SEAL = b"fedloom:sha256"
UNSEALED = b"0" * 64
# what stands before the digest in a footer: its key, and that a text of 64 bytes follows (Thrift)
BEFORE_DIGEST = SEAL + b"\x18\x40"
# bytes that are hashed at once
BYTES_AT_ONCE = 2**20


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, renamed to it only when the block succeeds."""
    path = Path(path)
    with _beside(path) as temporary:
        # a new file has the permissions that the user's umask allows
        temporary.touch(exist_ok=False)
        permissions = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary

        # safetensors writes files that their owner alone can read
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
    """Yield a name beside `path` that no other process uses, and remove what it names at the end.

    An error of writing there becomes one line about `path`; errors of other files pass.
    """
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent.resolve())
        try:
            yield temporary
        finally:
            remove(temporary)

    # an error of writing names the result or a folder above, or the temporary name or what is below
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
    """Write a table as Parquet, whole or not at all, with a checksum per page and a digest of all.

    Checksums of pages are not enough: the footer names the columns, and says where the pages of
    each lie. A flipped bit there could rename a column, or let it show the numbers of another.
    """
    # takes 0.1 s, and Snakemake needs none of it
    import pyarrow.parquet as pq

    with atomic_write(path) as temporary:
        # the whole file, with zeros for its digest
        with pq.ParquetWriter(temporary, table.schema, write_page_checksum=True) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({SEAL: UNSEALED})

        # the digest of that file, in the place of the zeros
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

    It must have `columns`, of integers, numbers, text or truth values as there, and may have more.
    """
    import pyarrow.parquet as pq

    # a name would be opened twice, and the file may be replaced between
    with _opened(path) as file:
        _check_seal(path, file)
        table = pq.read_table(file, page_checksum_verification=True)
        _check_columns(path, table.schema, columns)

        # the digest is that of this file, not of the table
        metadata = table.schema.metadata or {}
        facts = {key: value for key, value in metadata.items() if key != SEAL}
        return table.replace_schema_metadata(facts or None)


def check_table(path: Path, columns: "pa.Schema | None") -> None:
    """Check a Parquet table as `read_table` does, without its rows, for readers that are lazy."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        _check_seal(path, file)
        _check_columns(path, pq.read_schema(file), columns)


def read_facts(path: Path) -> dict[str, str]:
    """Read the metadata of a Parquet file, and none of its rows."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        _check_seal(path, file)
        facts = pq.read_schema(file).metadata or {}
        return {key.decode(): value.decode() for key, value in facts.items() if key != SEAL}


def _place_of_seal(file: "BinaryIO | pa.NativeFile") -> int | None:
    """Return where in a Parquet file its digest begins, which is in the footer; None without it."""
    # a Parquet file ends with its footer, the footer's length in four bytes, and PAR1
    file.seek(0, os.SEEK_END)
    size = file.tell()
    file.seek(max(size - 8, 0))
    start = size - 8 - int.from_bytes(file.read(4), "little")
    if start < 0:
        return None

    # the last place counts: a value before it may hold these bytes too
    file.seek(start)
    place = file.read(size - 8 - start).rfind(BEFORE_DIGEST)
    if place < 0:
        return None
    return start + place + len(BEFORE_DIGEST)


def _digest(file: "BinaryIO | pa.NativeFile", place: int) -> bytes:
    """Return the sha256 of a file, as hexadecimal digits, with UNSEALED at a place."""
    result = hashlib.sha256()

    # what comes before the place
    position = 0
    file.seek(0)
    while position < place and (part := file.read(min(BYTES_AT_ONCE, place - position))):
        result.update(part)
        position += len(part)

    # zeros, and what comes after the place
    result.update(UNSEALED)
    file.seek(place + len(UNSEALED))
    while part := file.read(BYTES_AT_ONCE):
        result.update(part)
    return result.hexdigest().encode()


def _check_seal(path: Path, file: "pa.NativeFile") -> None:
    """Refuse a file that does not match its digest; tables of earlier versions have none."""
    place = _place_of_seal(file)
    if place is not None:
        file.seek(place)
        if file.read(len(UNSEALED)) != _digest(file, place):
            raise FedLoomError(
                f"{path}: it does not match the digest in its footer; delete it and run again"
            )
    file.seek(0)


def _check_columns(path: Path, schema: "pa.Schema", columns: "pa.Schema | None") -> None:
    """Refuse a table without some of the columns, or with other kinds of values in them."""
    for column in columns or ():
        if schema.names.count(column.name) != 1:
            found = shortened(", ".join(schema.names))
            raise FedLoomError(
                f"{path}: must have one column '{column.name}', got {found}; delete it and run "
                "again"
            )

        # numbers of any width will do
        wanted = _kind(column.type)
        found = _kind(schema.field(column.name).type)
        if found != wanted:
            raise FedLoomError(
                f"{path}: column '{column.name}' must hold {wanted}, got {found}; delete it and "
                "run again"
            )


def _kind(kind: "pa.DataType") -> str:
    """Return what values of an Arrow type are, however many bits each has."""
    from pyarrow import types

    # a dictionary is another way to store its values
    if types.is_dictionary(kind):
        return _kind(kind.value_type)

    tests = {
        "integers": types.is_integer,
        "numbers": types.is_floating,
        "truth values": types.is_boolean,
        "text": lambda each: types.is_string(each) or types.is_large_string(each),
    }
    for name, test in tests.items():
        if test(kind):
            return name
    return str(kind)


@contextmanager
def _opened(path: Path) -> Iterator["pa.NativeFile"]:
    """Open a Parquet file; an error of opening or reading it becomes one line."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file:
            yield file
    except FileNotFoundError:
        raise FedLoomError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FedLoomError(
            f"{path}: not a whole Parquet file ({one_line(error)}); delete it and run again"
        ) from None


def canonical(value: object) -> str:
    """Return JSON with one spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_json(path: Path) -> dict:
    """Read a JSON object that FedLoom wrote."""
    try:
        return {**json.loads(Path(path).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError) as error:
        raise FedLoomError(
            f"{path}: missing or not a whole JSON file ({error}); delete it and run again"
        ) from None
