"""Parquet files as Hugging Face publishes them: a column of encoded images, one of labels."""

import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedloom.common.checkout import matching
from fedloom.common.errors import FedLoomError, one_line, suggestion
from fedloom.common.schema import OneOrMore
from fedloom.config.datasets import ClassNames, ClassPerDomain, ImageSource, TestFraction, described
from fedloom.data.image_list import ImageList, Item

ROWS = 64  # images held in memory at a time
BUFFER = 1 << 20  # bytes; without it a whole row group is read at once
HUGGING_FACE = b"huggingface"  # key of the metadata in which Hugging Face keeps the classes' names


class Parquet(ImageSource):
    """Parquet files as Hugging Face publishes them."""

    train_files: OneOrMore[str]
    test_files: OneOrMore[str] | None = None
    """Default: test_fraction is drawn."""
    image_column: str = "image"
    """Bytes, or structs with a field bytes."""
    label_column: str = "label"
    """Numbers or strings."""
    domain_column: str | None = None
    """Default: one domain."""
    class_per_domain: ClassPerDomain = False
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


def read(settings: dict[str, Any]) -> ImageList:
    """List the images of `train_files` and, if given, `test_files`.

    Labels are numbers, named by the Hugging Face metadata if it is there, or strings.
    """
    if settings["class_per_domain"] and "domain_column" not in settings:
        raise FedLoomError("class_per_domain needs domain_column")
    files = _files(settings)
    rows = [_checked_rows(file, key, settings) for file, key in files.items()]
    labels, classes, named = _column([*files], settings, "label_column")
    domains = test = None
    if "domain_column" in settings:
        numbers, names, _ = _column([*files], settings, "domain_column")
        domains = np.array(names)[numbers]
    if "test_files" in settings:
        test = np.repeat([key == "test_files" for key in files.values()], rows)

    def items() -> Iterator[Item]:
        for file in files:
            pieces = _read(file, settings["image_column"])
            for row, value in enumerate(value for piece in pieces for value in piece):
                yield Item(f"{file} row {row}", partial(_load, value))

    return ImageList(
        items=items,
        labels=labels,
        classes=classes,
        provenance=f"parquet: {described(settings)}",
        domains=domains,
        test=test,
        named=named,
    )


def _files(settings: dict[str, Any]) -> dict[Path, str]:
    """Return the files, each once, with the key that names it, `train_files` or `test_files`."""
    files: dict[Path, str] = {}
    for key in ("train_files", "test_files"):
        patterns = settings.get(key, [])
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            matches = matching(pattern)
            if not matches:
                raise FedLoomError(f"{key}: no file matches '{pattern}'; correct the pattern")
            for file in matches:
                if not file.is_file():
                    raise FedLoomError(
                        f"{file}: a folder, pipe or broken link, no Parquet file ({key}); end the "
                        "pattern with *.parquet, or remove it"
                    )
                if file in files:
                    line = f"named twice, by {files[file]} and by {key}; name it once"
                    raise FedLoomError(f"{file}: {line}")
                files[file] = key
    return files


def _open(file: Path) -> pq.ParquetFile:
    """Open a Parquet file whose pages will be read one at a time."""
    try:
        return pq.ParquetFile(
            file, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError, ValueError):
        raise FedLoomError(f"{file}: not a whole Parquet file; fetch it again") from None


def _checked_rows(file: Path, key: str, settings: dict[str, Any]) -> int:
    """Return the number of rows of a file; check that it has the columns that options name."""
    with _open(file) as parquet:
        rows, columns = parquet.metadata.num_rows, parquet.schema_arrow
    if not rows:
        raise FedLoomError(f"{file}: no rows in it; fetch it again, or leave it out of {key}")
    for option in ("image_column", "label_column", "domain_column"):
        if option in settings and settings[option] not in columns.names:
            hint = suggestion(settings[option], columns.names)
            raise FedLoomError(f"{file}: no column '{settings[option]}' ({option}); {hint}")
    kind = columns.field(settings["image_column"]).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        raise FedLoomError(
            f"{file}: column '{settings['image_column']}' holds {kind}, not encoded images (bytes, "
            "or a struct with a field 'bytes'); set image_column"
        )
    return rows


def _read(file: Path, column: str) -> Iterator[list]:
    """Yield the values of a column in pieces of ROWS; of structs, their field `bytes`."""
    with _open(file) as parquet:
        try:
            for batch in parquet.iter_batches(ROWS, columns=[column]):
                piece = batch.column(0)
                if pa.types.is_struct(piece.type) and piece.type.get_field_index("bytes") >= 0:
                    piece = piece.field("bytes")
                yield piece.to_pylist()
        except UnicodeDecodeError as error:  # no reader checks text before
            line = f"column '{column}' is not UTF-8 text ({error}); correct it"
            raise FedLoomError(f"{file}: {line}") from None
        except (pa.ArrowException, OSError) as error:
            reason = one_line(error)
            raise FedLoomError(f"{file}: damaged Parquet file ({reason}); fetch it again") from None


def _load(data: bytes | None) -> Image.Image:
    if data is None:
        raise ValueError("no bytes in this row")
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def _column(
    files: list[Path], settings: dict[str, Any], key: str
) -> tuple[np.ndarray, list[str], bool]:
    """Read a column of classes, or of domains, from all files, which must agree on the names.

    Return the classes' numbers [N], their names, and True unless the names are mere numbers.
    """
    first, column = files[0], settings[key]
    names, kind = _names(first, column), None
    expected = "text or a number" if names is None else "the number of a name"
    values: list = []
    for file in files:
        if _names(file, column) != names:
            raise FedLoomError(
                f"{file}: other names in the metadata of column '{column}' ({key}) than in {first};"
                " take files of one dataset"
            )
        for row, value in enumerate(value for piece in _read(file, column) for value in piece):
            where = f"{file} row {row}: {value!r} in column '{column}' ({key})"
            unnamed = names is not None and not (isinstance(value, int) and 0 <= value < len(names))
            if unnamed or not isinstance(value, int | str):
                raise FedLoomError(f"{where} must be {expected}; correct it")
            kind = kind or type(value)
            if type(value) is not kind:
                other = "text" if isinstance(value, str) else "a number"
                line = f"is {other}, unlike in {first}; take files of one dataset"
                raise FedLoomError(f"{where} {line}")
            values.append(value)
    if names is not None:
        return np.array(values), names, True
    distinct = sorted(set(values))
    number = {value: index for index, value in enumerate(distinct)}
    numbers = np.array([number[value] for value in values])
    return numbers, [str(value) for value in distinct], kind is str


def _names(file: Path, column: str) -> list[str] | None:
    """Return the names of a ClassLabel column, from the metadata that Hugging Face writes."""
    with _open(file) as parquet:
        metadata = (parquet.metadata.metadata or {}).get(HUGGING_FACE)
    if metadata is None:
        return None
    try:
        names = json.loads(metadata)["info"]["features"].get(column, {}).get("names")
        if names is None or (isinstance(names, list) and all(type(name) is str for name in names)):
            return names
        reason = f"names of column '{column}' must be text"
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
    raise FedLoomError(
        f"{file}: metadata of Hugging Face must be JSON with info.features by column, and lists of "
        f"names ({reason}); write the file again without it, and set class_names"
    )
