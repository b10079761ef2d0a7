"""Lists of image files with their classes, as data sets publish their splits.

Three formats, told apart by the file's suffix:

- `.json`, as CoOp's splits: `{"train": [[path, label, class name], ...], "val": ..., "test": ...}`;
- `.csv`, with a line of names of columns;
- any other, as text: a line per image, its columns separated by tabs; or without a tab, the path
  and after the last white space the class (DomainNet, ImageNet-LT).
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.folders import check_regular, printable


class Columns(NamedTuple):
    """The columns of a list: names in a .csv file, numbers from 0 in a text file."""

    path: str | int = 0
    label: str | int | None = 1  # None where labels do not count
    domain: str | int | None = None  # a test list without it has images of no domain


class Row(NamedTuple):
    """An image that a list names."""

    where: str  # the list's file and line, or the entry of JSON, for errors
    path: str
    label: str  # "" where labels do not count
    domain: str = ""
    name: str | None = None  # the class's name, where the list has one beside the label


def text_of(file: Path, contents: str) -> str:
    """Return the text of a file, in whose errors it is a list of its `contents`."""
    try:
        check_regular(str(file))
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or error
        raise FedLoomError(
            f"{printable(str(file))}: no list of {contents} there ({reason})"
        ) from None
    except UnicodeDecodeError as error:
        raise FedLoomError(f"{file}: not UTF-8 ({error.reason} at byte {error.start})") from None


def rows(file: Path, half: str, columns: Columns) -> list[Row]:
    """Read a list; of a .json file the part `half`: train, val or test."""
    text = text_of(file, "images")
    if half == "test" and file.suffix.lower() == ".csv" and columns.domain is not None:
        header = next(csv.reader(text.splitlines()), [])
        columns = columns._replace(domain=columns.domain if columns.domain in header else None)
    if file.suffix.lower() == ".json":
        images = list(_json(file, text, half))
    else:
        images = list((_csv if file.suffix.lower() == ".csv" else _text)(file, text, columns))
    if not images:
        raise FedLoomError(f"{file}: a list without images; fetch it again")
    return images


def _text(file: Path, text: str, columns: Columns) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        if "\t" in line:
            cells = [cell.strip() for cell in line.split("\t")]
        elif columns.label is None:
            path, _, last = line.strip().rpartition(" ")
            cells = [path.strip() if path and last.isdecimal() else line.strip()]
        else:
            cells = line.strip().rsplit(maxsplit=1)
        yield _row(where, dict(enumerate(cells)), columns)


def _csv(file: Path, text: str, columns: Columns) -> Iterator[Row]:
    reader = csv.DictReader(text.splitlines())
    try:
        for line in reader:
            cells: dict[Any, Any] = {k: v for k, v in line.items() if isinstance(v, str)}
            yield _row(f"{file}, line {reader.line_num}", cells, columns)
    except csv.Error as error:
        raise FedLoomError(f"{file}, line {reader.line_num}: {error}") from None


def _row(where: str, cells: dict[Any, str], columns: Columns) -> Row:
    """Return a line's columns as a Row, all of which it must have."""
    for column in columns:
        if column is not None and not cells.get(column):
            raise FedLoomError(f"{where}: no column {column!r} among {[*cells]}")
    return Row(where, *("" if column is None else cells[column] for column in columns))


def _json(file: Path, text: str, half: str) -> Iterator[Row]:
    advice = 'expected {"train": [[path, label, class name], ...], "test": ...} as of CoOp'
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = one_line(error)
        raise FedLoomError(f"{file}: no whole JSON ({reason}); fetch it again") from None
    if not isinstance(content, dict) or not isinstance(content.get(half), list):
        raise FedLoomError(f"{file}: no list '{half}' in it; {advice}")
    for number, entry in enumerate(content[half]):
        where = f"{file}, {half}[{number}]"
        match entry:
            case [str(path), int(label), str(name)]:
                yield Row(where, path, str(label), name=name)
            case _:
                raise FedLoomError(f"{where}: {str(entry)[:60]!r}; {advice}")
