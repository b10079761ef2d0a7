"""Read Parquet files as Hugging Face publishes them, with columns of encoded images and labels."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedloom.common.errors import FedLoomError, check_known, in_words, one_line
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import OneOrMore
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, describe_listing
from fedloom.data.image_list import ImageList, Item
from fedloom.data.labels import classes_from_labels, tidy_names
from fedloom.data.pixels import decode_image
from fedloom.machine.install import matching

# images that are held in memory at a time
ROWS_AT_ONCE = 64
# bytes that are read at once; without a buffer, a whole row group is read at once
BUFFER = 1 << 20
NONE = '{"info": {"features": {}}}'
OPTIONS = ("image_column", "label_column", "domain_column")


class Parquet(ImageSource):
    """Parquet files in the form in which Hugging Face publishes data sets of images."""

    train_files: OneOrMore[str]
    """Files of the training images: a path, a pattern such as data/train-*.parquet, or a list of
    these."""
    test_files: OneOrMore[str] | None = None
    """Files of the test images, in the same form as `train_files`. Default: `test_fraction` of the
    images in `train_files` become test images."""
    image_column: str = "image"
    """Column with the encoded images, as bytes or as structs with a field `bytes`."""
    label_column: str = "label"
    """Column with the classes, as whole numbers or strings."""
    domain_column: str | None = None
    """Column with the domains. Default: all images are of one domain."""
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


def read(settings: JsonDict) -> ImageList:
    """List the images of `train_files` and, if given, `test_files`.

    Labels are strings or numbers. If the files have Hugging Face's metadata, it may name the
    numbers.
    """
    # the classes of all files, and the rows of test files
    files = _files(settings)
    names = {file: _names(file, settings) for file in files}
    labels, classes, named = _classes(names, settings)
    test = None
    if "test_files" in settings:
        rows = [pq.read_metadata(file).num_rows for file in files]
        test = np.repeat([key == "test_files" for key in files.values()], rows)

    def items() -> Iterator[Item]:
        for file in files:
            for row, value in enumerate(_values(file, settings["image_column"])):
                yield Item(f"{file} row {row}", partial(_load, value))

    return ImageList(
        items=items,
        labels=labels,
        classes=classes,
        provenance=f"parquet: {describe_listing(settings)}",
        domains=_domains(names, settings),
        test=test,
        named=named,
    )


def _files(settings: JsonDict) -> dict[Path, str]:
    """Return each file with the key that names it, `train_files` or `test_files`.

    Raises a FedLoomError if a pattern matches no file, or if a file is named twice.
    """
    files: dict[Path, str] = {}
    for key in ("train_files", "test_files"):
        patterns = settings.get(key, [])
        if isinstance(patterns, str):
            patterns = [patterns]

        for pattern in patterns:
            matches = matching(pattern)
            if not matches:
                raise FedLoomError(f"{key}: no file matches '{pattern}'; correct the pattern")

            for file in matches:
                if not file.is_file():
                    raise FedLoomError(f"{file}: not a file; end {key} with *.parquet")
                if file in files:
                    raise FedLoomError(
                        f"{file}: named twice, by {files[file]} and by {key}; name it once"
                    )
                files[file] = key
    return files


@contextmanager
def _open(file: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file to read it page by page; raise a FedLoomError if it is damaged."""
    try:
        with pq.ParquetFile(
            file, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True
        ) as parquet:
            yield parquet
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = one_line(error)
        raise FedLoomError(f"{file}: damaged Parquet file ({reason}); fetch it again") from None


def _names(file: Path, settings: JsonDict) -> dict[str, list[str] | None]:
    """Return the names of the numbers in each column that an option names; None: it has no names.

    Raises a FedLoomError if such a column is missing, or if Hugging Face's metadata is broken.
    """
    with _open(file) as parquet:
        columns = parquet.schema_arrow.names
        metadata = parquet.metadata.metadata or {}
    options = {key: settings[key] for key in OPTIONS if key in settings}
    for option, column in options.items():
        check_known(column, columns, f"{file}: {option}: no column")

    # Hugging Face's metadata names the numbers
    try:
        features = json.loads(metadata.get(b"huggingface", NONE))["info"]["features"]
        names = {column: features.get(column, {}).get("names") for column in options.values()}
        for found in names.values():
            if found is not None and [*map(str, found)] != found:
                raise TypeError("names must be a list of text")
        return names
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FedLoomError(
            f"{file}: metadata of Hugging Face must be JSON with info.features by column "
            f"({in_words(error)}); write the file again without it, and set class_names"
        ) from None


def _values(file: Path, column: str) -> Iterator[Any]:
    """Yield the values of a column; if they are structs, yield their field `bytes`."""
    with _open(file) as parquet:
        for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=[column]):
            piece = batch.column(0)
            if pa.types.is_struct(piece.type) and piece.type.get_field_index("bytes") >= 0:
                piece = piece.field("bytes")
            yield from piece.to_pylist()


def _load(data: object) -> Image.Image:
    """Decode the bytes of an image; raise a ValueError if the row holds something else."""
    if not isinstance(data, bytes):
        raise ValueError(f"no encoded image, but {type(data).__name__}")
    return decode_image(io.BytesIO(data))


def _classes(
    named: dict[Path, dict[str, list[str] | None]], settings: JsonDict
) -> tuple[np.ndarray, list[str], bool]:
    """Return each image's class, [N], the names of the classes, and whether these are words."""
    values, names = _column(named, settings, "label_column")
    if names is not None:
        return np.array(values), names, True

    def where(image: int) -> str:
        """Return the file and the row of an image, for an error."""
        for file in named:
            rows = pq.read_metadata(file).num_rows
            if image < rows:
                return f"{file} row {image}"
            image -= rows
        raise IndexError("the files must have as many rows as there are images")

    found = classes_from_labels([*map(str, values)], where)
    return found.numbers, found.labels, found.named and isinstance(values[0], str)


def _domains(
    named: dict[Path, dict[str, list[str] | None]], settings: JsonDict
) -> np.ndarray | None:
    """Return the domain of every image, str [N]; None if the settings name no column of domains."""
    if "domain_column" not in settings:
        return None
    values, names = _column(named, settings, "domain_column")
    if names is None:
        return np.array(tidy_names([str(value) for value in values]))
    return np.array(tidy_names([names[value] for value in values]))


def _column(
    named: dict[Path, dict[str, list[str] | None]], settings: JsonDict, key: str
) -> tuple[list[Any], list[str] | None]:
    """Read the column of classes, or of domains, from all files.

    Returns the values of all images, and the names of these values if they are numbers with names.
    Raises a FedLoomError if files have different names for the numbers, or if a value has another
    type than the others.
    """
    first = next(iter(named))
    column = settings[key]
    names = named[first][column]

    values: list[Any] = []
    for file, of_columns in named.items():
        # numbers must mean the same in all files
        if of_columns[column] != names:
            raise FedLoomError(
                f"{file}: other names in the metadata of column '{column}' ({key}) than in {first};"
                " take files of one dataset"
            )

        # values are numbers of names if there are names, else text or whole numbers; all rows must
        # have the same type
        for row, value in enumerate(_values(file, column)):
            is_alike = not values or type(value) is type(values[0])
            if names is None:
                expected = "text or a whole number"
                is_right = isinstance(value, int | str)
            else:
                expected = "the number of a name"
                is_right = isinstance(value, int) and 0 <= value < len(names)
            if not is_right or not is_alike:
                raise FedLoomError(
                    f"{file} row {row}: {value!r} in column '{column}' ({key}) must be {expected}, "
                    f"as in all rows from {first} on; correct it"
                )
            values.append(value)
    return values, names
