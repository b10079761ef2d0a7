"""Files that are either whole or absent, tables with checksums, and JSON with one spelling."""

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.temporary import remove, sweep, temporary_name

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, renamed to it only when the block succeeds."""
    path = Path(path)
    with _beside(path) as temporary:
        temporary.touch(exist_ok=False)
        permissions = stat.S_IMODE(temporary.stat().st_mode)  # by the umask
        yield temporary
        temporary.chmod(permissions)  # safetensors gives them to the owner alone
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
    except (OSError, SafetensorError) as error:
        blamed = Path(getattr(error, "filename", None) or path)
        if blamed not in (path, *path.parents) and temporary not in (blamed, *blamed.parents):
            raise
        reason = one_line(getattr(error, "strerror", None) or error)
        raise FedLoomError(f"{path}: cannot be written ({reason})") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(path: Path, table: "pa.Table") -> None:
    """Write a table as Parquet with a checksum per page, whole or not at all."""
    import pyarrow.parquet as pq  # takes 0.1 s, and Snakemake needs none of it

    with replacing(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)


def read_table(path: Path) -> "pa.Table":
    """Read a Parquet table and verify the checksums of its pages."""
    import pyarrow.parquet as pq

    # a name would be opened twice, and the file may be replaced between
    with _opened(path) as file:
        return pq.read_table(file, page_checksum_verification=True)


def read_facts(path: Path) -> dict[str, str]:
    """Read the metadata of a Parquet file, and none of its rows."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        facts = pq.read_schema(file).metadata or {}
        return {key.decode(): value.decode() for key, value in facts.items()}


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
        line = f"{path}: not a whole Parquet file ({one_line(error)}); delete it and run again"
        raise FedLoomError(line) from None


def canonical(value: object) -> str:
    """Return JSON with one spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_json(path: Path) -> dict:
    """Read a JSON object that FedLoom wrote."""
    try:
        return {**json.loads(Path(path).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError) as error:
        line = f"{path}: missing or not a whole JSON file ({error}); delete it and run again"
        raise FedLoomError(line) from None
