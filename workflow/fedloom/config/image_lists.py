"""Read lists of image files and their classes, in the formats in which splits are published.

The suffix of a list's file tells its format:

- `.json`: as CoOp's splits, `{"train": [[path, label, class name], ...], "val": ..., "test": ...}`;
- `.csv`: columns separated by commas, with their names in the first line;
- any other: text with a line per image. Tabs separate the columns. A line without a tab is a path,
  white space and a class (DomainNet, ImageNet-LT).
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedloom.common.errors import FedLoomError, in_words, shorten
from fedloom.common.folders import check_regular, named_folder, printable, walk
from fedloom.common.ids import NO_DOMAIN
from fedloom.common.json_types import JsonDict

# the first two bytes that editors and spreadsheets write if a text is not UTF-8
OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class ListColumns(NamedTuple):
    """The columns of a list: names in a .csv file, numbers from 0 in a text file."""

    path: str | int = 0
    # None if the class does not come from the list
    label: str | int | None = 1
    # None if the list states no domains
    domain: str | int | None = None


class ListedImage(NamedTuple):
    """An image file that a list names."""

    path: str
    # "" if the class does not come from the list
    label: str
    domain: str = ""
    test: bool = False
    # an error about the row begins with this: the list's file and line, or an entry of a .json file
    where: str = ""
    # the name of the class, if the list has one beside the label
    name: str | None = None


def listed_files(root: Path, settings: JsonDict) -> list[ListedImage]:
    """Return the image files that the lists of both splits name.

    `settings` are the keys of the source `lists`. Paths are normalised: links to the folder of the
    images are resolved, and dots removed.

    Raises:
        FedLoomError: a list is wrong, or an image file is missing or named twice.
    """
    # the folders of images, by domain or split; a single folder for all has the name ""
    images = settings["images"]
    if not isinstance(images, dict):
        images = {"": images}
    folders = {
        name: named_folder(root / folder, "images").resolve() for name, folder in images.items()
    }
    by_name: dict[str, dict[str, str]] = {}
    if settings["anywhere"]:
        by_name = {name: _by_name(folder) for name, folder in folders.items()}

    # the columns, and the domain of images for which no list states one
    label = None if settings["class_from"] == "folder" else settings["label_column"]
    columns = ListColumns(settings["path_column"], label, settings.get("domain_column"))
    default_domain = NO_DOMAIN if columns.domain is not None else "all"

    # every row of every list, with the path of its file
    files: dict[str, ListedImage] = {}
    for half, name, domain in list_files(settings):
        which = ""
        if isinstance(settings["images"], dict):
            which = domain or half
        if which not in folders:
            known = ", ".join(folders)
            raise FedLoomError(
                f"images must name a folder for '{which}' too, got folders for {known}"
            )
        for row in read_rows(root / name, half, columns):
            # paths are text, not of pathlib: a plan looks at 100,000 of them
            path = os.path.normpath(os.path.join(folders[which], row.path))  # noqa: PTH118
            if by_name:
                path = by_name[which].get(row.path, path)
            if path in files:
                first = files[path].where
                raise FedLoomError(
                    f"{row.where}: {printable(path)} must be named once, it is also in {first}"
                )
            if not os.path.isfile(path):  # noqa: PTH113
                raise FedLoomError(f"{row.where}: there is no file {printable(path)}")
            files[path] = row._replace(path=path, domain=domain or row.domain or default_domain)
    return [*files.values()]


def list_files(settings: JsonDict) -> Iterator[tuple[str, str, str]]:
    """Yield every list of the source `lists`: its split, its file, and its domain or ""."""
    for half in ("train", "test"):
        by_domain = settings.get(half, [])
        if not isinstance(by_domain, dict):
            by_domain = {"": by_domain}
        for domain, files in by_domain.items():
            if isinstance(files, str):
                files = [files]
            for file in files:
                yield half, file, domain


def _by_name(folder: Path) -> dict[str, str]:
    """Return the paths of all files below a folder, by their names without suffix.

    Raises:
        FedLoomError: two files have the same name without suffix.
    """
    paths: dict[str, str] = {}
    for _, _, entries in walk(str(folder)):
        for entry in entries:
            first = paths.setdefault(Path(entry.name).stem, entry.path)
            if first != entry.path:
                raise FedLoomError(
                    f"{printable(entry.path)}: has the name of {printable(first)}; lists name "
                    "images by their names alone (anywhere: true), so keep one of them"
                )
    return paths


def read_list_text(file: Path) -> str:
    """Return the text of a file; raise a FedLoomError if it cannot be read or is not UTF-8."""
    try:
        check_regular(str(file))
        data = file.read_bytes()
        if data[:2] in OTHER_ENCODINGS:
            found = OTHER_ENCODINGS[data[:2]]
            raise FedLoomError(f"{file}: must be UTF-8, got {found}; save it as UTF-8")
        if b"\0" in data:
            raise FedLoomError(
                f"{file}: must be UTF-8 text, got bytes of zero, as UTF-16 has; save it as UTF-8"
            )
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedLoomError(f"{printable(str(file))}: cannot be read ({error})") from None


def read_rows(file: Path, half: str, columns: ListColumns) -> list[ListedImage]:
    """Read a list; from a .json file, read the part `half`: train, val or test."""
    suffix = file.suffix.lower()
    if suffix == ".json":
        images = [*_json(file, half)]
    elif suffix == ".csv":
        images = [*_csv(file, half, columns)]
    else:
        images = [*_text(file, half, columns)]
    if not images:
        raise FedLoomError(f"{file}: a list without images; fetch it again")
    return images


def _text(file: Path, half: str, columns: ListColumns) -> Iterator[ListedImage]:
    """Yield the rows of a text file, whose columns have numbers."""
    needed = _needed(columns, half)
    for key, column in needed.items():
        if isinstance(column, str):
            raise FedLoomError(
                f"{file}: {key} must be the number of a column, such as 0, since the file is not "
                f"called .csv, got '{column}'; correct it, or rename the file if it is one"
            )

    for number, line in enumerate(read_list_text(file).splitlines(), 1):
        line = line.strip()
        if not line:
            continue
        if "\t" in line:
            cells = [cell.strip() for cell in line.split("\t")]
        elif columns.label is None:
            path, _, last = line.rpartition(" ")
            cells = [path.strip() if path and last.isdecimal() else line]
        else:
            cells = line.rsplit(maxsplit=1)
            _check_separated(f"{file}, line {number}", cells)

        yield _row(f"{file}, line {number}", dict(enumerate(cells)), half, columns, needed)


def _check_separated(where: str, cells: list[str]) -> None:
    """Refuse a line of a text file that is one cell, since something else separates its columns."""
    if len(cells) != 1:
        return
    for separator, found in {",": "commas", **OTHER_SEPARATORS}.items():
        if separator in cells[0]:
            line = shorten(cells[0], 100)
            raise FedLoomError(
                f"{where}: columns must be separated by tabs or blanks, since the file is not "
                f"called .csv, got {found} in {line!r}; write tabs, or a .csv file with a first "
                "line of names"
            )


def _csv(file: Path, half: str, columns: ListColumns) -> Iterator[ListedImage]:
    """Yield the rows of a .csv file, whose first line names the columns."""
    needed = _needed(columns, half)
    reader = csv.reader(io.StringIO(read_list_text(file), newline=""), skipinitialspace=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _check_header(file, header, needed)

        # the rows; empty lines count as none
        for line in reader:
            cells = [cell.strip() for cell in line]
            where = f"{file}, line {reader.line_num}"
            if any(cells[len(header) :]):
                raise FedLoomError(
                    f"{where}: must have {len(header)} cells, as the first line, got {len(cells)}; "
                    'put "quotes" around a cell with a comma'
                )
            if any(cells):
                yield _row(where, dict(zip(header, cells, strict=False)), half, columns, needed)
    except csv.Error as error:
        raise FedLoomError(f"{file}: {error}") from None


def _check_header(file: Path, header: list[str], needed: dict[str, str | int]) -> None:
    """Require the columns `needed`, each once, in the first line of a .csv file."""
    for key, column in needed.items():
        if header.count(str(column)) == 1:
            continue
        line = shorten(",".join(header), 100)
        for separator, found in OTHER_SEPARATORS.items():
            if len(header) == 1 and separator in line:
                raise FedLoomError(
                    f"{file}: columns must be separated by commas, got {found} in its first line, "
                    f"{line!r}; save it with commas"
                )
        raise FedLoomError(
            f"{file}, line 1: {key} must be the name of a column, which occurs once, got "
            f"{column!r} among {header}; correct the key"
        )


def _needed(columns: ListColumns, half: str) -> dict[str, str | int]:
    """Return the columns that every row must have, by their keys; a test image needs no domain."""
    named = {"path_column": columns.path, "label_column": columns.label}
    if half != "test":
        named["domain_column"] = columns.domain
    return {key: column for key, column in named.items() if column is not None}


def _row(
    where: str,
    cells: Mapping[str | int, str],
    half: str,
    columns: ListColumns,
    needed: dict[str, str | int],
) -> ListedImage:
    """Return the image that a line names; refuse a line that lacks a `needed` column."""
    for key, column in needed.items():
        if cells.get(column):
            continue
        if column in cells:
            raise FedLoomError(f"{where}: column {column!r} is empty; fill it or remove the line")
        raise FedLoomError(f"{where}: no column {column!r} among {[*cells]}; correct it or {key}")
    path, label, domain = ("" if c is None else cells.get(c, "") for c in columns)
    return ListedImage(path, label, domain, half == "test", where)


def _json(file: Path, half: str) -> Iterator[ListedImage]:
    """Yield the rows of a part of a .json file, as CoOp's code writes it."""
    try:
        entries = json.loads(read_list_text(file))[half]
        for number, (path, label, name) in enumerate(entries):
            if not isinstance(path, str) or type(label) is not int or not isinstance(name, str):
                raise TypeError(f"[{path!r}, {label!r}, {name!r}]")
            where = f"{file}, {half}[{number}]"
            yield ListedImage(path, str(label), "", half == "test", where, name)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FedLoomError(
            f'{file}: must be JSON as of CoOp, {{"{half}": [[path, label, class name], ...]}} '
            f"({in_words(error)}); fetch it again"
        ) from None
