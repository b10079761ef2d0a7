"""Image files that lists name, with their classes: text, CSV, or JSON as CoOp's splits.

The format is told by a list's suffix:

- `.json`, as CoOp's splits: `{"train": [[path, label, class name], ...], "val": ..., "test": ...}`;
- `.csv`, with a line of names of columns;
- any other, as text: a line per image, its columns separated by tabs; or without a tab, the path
  and after the last white space the class (DomainNet, ImageNet-LT).
"""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.folders import check_regular, printable, walk
from fedloom.common.schema import OneOrMore
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, described
from fedloom.data.image_list import NO_DOMAIN, ImageList, file_items, named_folder, root_folder

COLUMN = "of a .csv file its name, of a text file its number from 0"
FileLists = Annotated[
    OneOrMore[str] | Annotated[dict[str, OneOrMore[str]], Field(min_length=1)],
    Field(
        description="a list below the root, several, or some for every domain (domain -> list or "
        "lists)"
    ),
]


class Lists(ImageSource):
    """Image files that lists name with their classes: text with a path and a class in a line, .csv
    files, or .json files of the form of CoOp's splits.
    """

    root: str
    """The folder that holds the files."""
    train: FileLists
    test: FileLists | None = None
    """Default: test_fraction is drawn."""
    images: str | Annotated[dict[str, str], Field(min_length=1)] = "."
    """Folder below the root from which the lists' paths start; or one for every domain, or where
    the lists are of no domain, for train and test."""
    anywhere: bool = False
    """The lists name images without folder and suffix; they are looked up below `images`."""
    path_column: str | int = Field(0, description=COLUMN)
    label_column: str | int = Field(1, description=COLUMN)
    domain_column: str | int | None = None
    """Of a .csv file its name, of a text file its number; default: one domain. Images of a test
    list without that column go, in a partition by domains, to clients that hold their class."""
    class_from: Literal["label", "folder"] = "label"
    """The list's label names the class, or the folder that the image lies in."""
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


class Columns(NamedTuple):
    """The columns of a list: names in a .csv file, numbers from 0 in a text file."""

    path: str | int = 0
    label: str | int | None = 1  # None where labels do not count
    domain: str | int | None = None  # a test list without it has images of no domain


class Row(NamedTuple):
    """An image file that a list names."""

    path: str
    label: str  # "" where labels do not count
    domain: str = ""
    test: bool = False
    where: str = ""  # the list's file and line, or the entry of JSON, for errors
    name: str | None = None  # the class's name, where the list has one beside the label


def read(settings: dict[str, Any]) -> ImageList:
    """List the images that the lists `train` and `test` name, in their order."""
    root = root_folder(settings["root"], "lists and images")
    provenance = f"lists: {described(settings)}"
    files = _files(root, settings)
    labels, classes, named = _classes(files, settings)
    return ImageList(
        items=file_items([file.path for file in files]),
        labels=labels,
        classes=classes,
        provenance=provenance,
        domains=np.array([file.domain for file in files]),
        test=np.array([file.test for file in files]) if "test" in settings else None,
        named=named,
    )


def _files(root: Path, settings: dict[str, Any]) -> list[Row]:
    """Return the files that the lists of both splits name."""
    images, by_name = settings["images"], {}
    folders = {
        name: named_folder(root / folder, "images").resolve()
        for name, folder in (images if isinstance(images, dict) else {"": images}).items()
    }
    if settings["anywhere"]:
        by_name = {name: _by_name(folder) for name, folder in folders.items()}
    label = None if settings["class_from"] == "folder" else settings["label_column"]
    columns = Columns(settings["path_column"], label, settings.get("domain_column"))
    files: dict[str, Row] = {}
    shared = NO_DOMAIN if columns.domain is not None else "all"
    for half in ("train", "test"):
        for list_file, domain in _lists(settings.get(half, [])):
            which = (domain or half) if isinstance(images, dict) else ""
            if which not in folders:
                named = ", ".join(folders)
                raise FedLoomError(f"images names a folder for {named}, but not for '{which}'")
            for row in rows(root / list_file, half, columns):
                # without links and dots, so that a file has one path
                path = os.path.normpath(folders[which] / row.path)
                if by_name:
                    path = by_name[which].get(row.path, path)
                if path in files or not Path(path).is_file():
                    why = "is not there"
                    if path in files:
                        why = f"is named again, after {files[path].where}"
                    raise FedLoomError(f"{row.where}: {printable(path)} {why}")
                files[path] = row._replace(path=path, domain=domain or row.domain or shared)
    return [*files.values()]


def _lists(lists: str | list[str] | dict[str, str | list[str]]) -> list[tuple[str, str]]:
    """Return the list files of a split, each with the domain that it is of, or ""."""
    if isinstance(lists, dict):
        return [(file, name) for name, each in lists.items() for file, _ in _lists(each)]
    return [(file, "") for file in ([lists] if isinstance(lists, str) else lists)]


def _by_name(folder: Path) -> dict[str, str]:
    """Return the paths of all files below a folder, by their names without suffix."""
    paths: dict[str, str] = {}
    for entry in (entry for _, _, entries in walk(str(folder)) for entry in entries):
        first = paths.setdefault(Path(entry.name).stem, entry.path)
        if first != entry.path:
            raise FedLoomError(
                f"{printable(entry.path)}: has the name of {printable(first)}; lists name images "
                "by their names alone (anywhere: true), so keep one of them"
            )
    return paths


def _classes(files: list[Row], settings: dict[str, Any]) -> tuple[np.ndarray, list[str], bool]:
    """Return the class of every file, the classes, and whether these are more than numbers.

    Labels that are numbers are one class where they are one integer, as 07 and 7. A mixture of
    numbers and words is refused, for a misspelt number would be a class.
    """
    by_folder = settings["class_from"] == "folder"
    labels = [Path(file.path).parent.name if by_folder else file.label for file in files]
    numeric = [label.isdecimal() for label in labels]
    numbers = all(numeric)
    if not by_folder and any(numeric) and not numbers:
        word, number = numeric.index(False), numeric.index(True)
        raise FedLoomError(
            f"{files[word].where}: labels must be numbers alone, which class_names can name, "
            f"or words alone, got '{labels[word]}' beside '{labels[number]}'"
        )
    if numbers and not by_folder:
        labels = [str(int(label)) for label in labels]
    name = dict[str, str | None].fromkeys(labels)
    for file, label in zip(files, labels, strict=True):
        if file.name is not None and name[label] not in (None, file.name):
            line = f"class {label} is called '{file.name}' here, '{name[label]}' before"
            raise FedLoomError(f"{file.where}: {line}")
        name[label] = name[label] or file.name
    distinct = sorted(name, key=int if numbers else str)
    number = {label: place for place, label in enumerate(distinct)}
    classes = [name[label] or label for label in distinct]
    return np.array([number[label] for label in labels]), classes, not numbers or any(name.values())


def text_of(file: Path) -> str:
    """Return the text of a file of lines."""
    try:
        check_regular(str(file))
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FedLoomError(f"{printable(str(file))}: cannot be read ({error})") from None


def rows(file: Path, half: str, columns: Columns) -> list[Row]:
    """Read a list; of a .json file the part `half`: train, val or test."""
    suffix = file.suffix.lower()
    if suffix == ".json":
        images = list(_json(file, half))
    else:
        numbered = (_csv if suffix == ".csv" else _text)(text_of(file), columns)
        try:
            images = [_row(f"{file}, line {n}", cells, half, columns) for n, cells in numbered]
        except csv.Error as error:
            raise FedLoomError(f"{file}: {error}") from None
    if not images:
        raise FedLoomError(f"{file}: a list without images; fetch it again")
    return images


def _text(text: str, columns: Columns) -> Iterator[tuple[int, dict[Any, str]]]:
    """Yield number and columns of every line, as `_csv`."""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if "\t" in line:
            cells = [cell.strip() for cell in line.split("\t")]
        elif columns.label is None:
            path, _, last = line.rpartition(" ")
            cells = [path.strip() if path and last.isdecimal() else line]
        else:
            cells = line.rsplit(maxsplit=1)
        if line:
            yield number, dict(enumerate(cells))


def _csv(text: str, columns: Columns) -> Iterator[tuple[int, dict[Any, str]]]:
    reader = csv.DictReader(text.splitlines())
    for line in reader:
        yield reader.line_num, {k: v for k, v in line.items() if isinstance(v, str)}


def _row(where: str, cells: dict[Any, str], half: str, columns: Columns) -> Row:
    """Return a line's columns as a Row; a test image alone may lack the domain's."""
    needed = columns[:2] if half == "test" else columns
    for column in needed:
        if column is not None and not cells.get(column):
            raise FedLoomError(f"{where}: no column {column!r} among {[*cells]}")
    values = ("" if column is None else cells.get(column, "") for column in columns)
    return Row(*values, test=half == "test", where=where)


def _json(file: Path, half: str) -> Iterator[Row]:
    try:
        for number, (path, label, name) in enumerate(json.loads(text_of(file))[half]):
            where = f"{file}, {half}[{number}]"
            yield Row(str(path), str(int(label)), "", half == "test", where, name)
    except (ValueError, TypeError, KeyError) as error:
        raise FedLoomError(
            f'{file}: must be JSON as of CoOp, {{"{half}": [[path, label, class name], ...]}} '
            f"({in_words(error)}); fetch it again"
        ) from None
