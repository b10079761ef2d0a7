"""Image files that lists name, with their classes: text, CSV, or JSON as CoOp's splits."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder, printable, walk
from fedloom.common.schema import OneOrMore
from fedloom.config.datasets import ClassNames, ClassPerDomain, ImageSource, TestFraction, described
from fedloom.data.image_list import NO_DOMAIN, ImageList, file_items, root_folder
from fedloom.data.split_files import Columns, Row, rows

log = logging.getLogger(__name__)

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
    class_per_domain: ClassPerDomain = False
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


class _Images(NamedTuple):
    """A folder of images from which the paths of a list start."""

    folder: Path  # without links, so that a file has one path
    by_name: dict[str, str] | None  # where lists name files without folder and suffix


class _File(NamedTuple):
    """An image file that a list names."""

    path: str
    row: Row
    domain: str
    test: bool


def read(settings: dict[str, Any]) -> ImageList:
    """List the images that the lists `train` and `test` name, in their order."""
    root = root_folder(settings["root"], "lists and images")
    provenance = f"lists: {described(settings)}"
    files = _files(root, settings)
    labels, classes, named = _classes(files, settings)
    log.info("%s: %d images of %d classes in lists", root, len(files), len(classes))
    return ImageList(
        items=file_items([file.path for file in files]),
        labels=labels,
        classes=classes,
        provenance=provenance,
        domains=np.array([file.domain for file in files]),
        test=np.array([file.test for file in files]) if "test" in settings else None,
        named=named,
    )


def _files(root: Path, settings: dict[str, Any]) -> list[_File]:
    """Return the files that the lists of both splits name."""
    roots = settings["images"] if isinstance(settings["images"], dict) else {}
    folders = {
        name: _images(root / folder, settings["anywhere"])
        for name, folder in (roots or {"": settings["images"]}).items()
    }
    label = None if settings["class_from"] == "folder" else settings["label_column"]
    columns = Columns(settings["path_column"], label, settings.get("domain_column"))
    files: list[_File] = []
    seen: dict[str, str] = {}
    shared = NO_DOMAIN if columns.domain is not None else "all"
    for half in ("train", "test"):
        for list_file, domain in _lists(settings.get(half, [])):
            which = (domain or half) if roots else ""
            if which not in folders:
                named = ", ".join(roots)
                raise FedLoomError(f"images names a folder for {named}, but not for '{which}'")
            images = folders[which]
            for row in rows(root / list_file, half, columns):
                path = _path(row, images)
                if path in seen:
                    again = f"names {printable(path)} again, after {seen[path]}"
                    raise FedLoomError(f"{row.where}: {again}")
                seen[path] = row.where
                files.append(_File(path, row, domain or row.domain or shared, half == "test"))
    return files


def _lists(lists: str | list[str] | dict[str, str | list[str]]) -> list[tuple[str, str]]:
    """Return the list files of a split, each with the domain that it is of, or ""."""
    if isinstance(lists, dict):
        return [(file, name) for name, each in lists.items() for file, _ in _lists(each)]
    return [(file, "") for file in ([lists] if isinstance(lists, str) else lists)]


def _images(folder: Path, anywhere: bool) -> _Images:
    """Return the folder of images from which paths start; `anywhere`: names without suffix."""
    if not is_folder(folder):
        raise FedLoomError(f"{printable(str(folder))}: no such folder, but images names it")
    folder = folder.resolve()
    if not anywhere:
        return _Images(folder, None)
    paths: dict[str, str] = {}
    for entry in (entry for _, _, entries in walk(str(folder)) for entry in entries):
        first = paths.setdefault(Path(entry.name).stem, entry.path)
        if first != entry.path:
            raise FedLoomError(
                f"{printable(entry.path)}: has the name of {printable(first)}; lists name images "
                "by their names alone (anywhere: true), so keep one of them"
            )
    return _Images(folder, paths)


def _path(row: Row, images: _Images) -> str:
    """Return the path of the file that a row names, which must lie below the folder of images."""
    if images.by_name is not None:
        if row.path not in images.by_name:
            raise FedLoomError(f"{row.where}: no image '{row.path}' anywhere below {images.folder}")
        return images.by_name[row.path]
    below = Path(os.path.normpath(row.path))
    if below.is_absolute() or os.pardir in below.parts:
        raise FedLoomError(
            f"{row.where}: {printable(row.path)} is not below {printable(str(images.folder))}; "
            "write paths as they start there, or set images to a folder above all of them"
        )
    path = images.folder / below
    if not path.is_file():
        raise FedLoomError(f"{row.where}: names {printable(str(path))}, which is not there")
    return str(path)


def _classes(files: list[_File], settings: dict[str, Any]) -> tuple[np.ndarray, list[str], bool]:
    """Return the class of every file, the classes, and whether these are more than numbers.

    Labels that are numbers are one class where they are one integer, as 07 and 7. A mixture of
    numbers and words is refused, for a misspelt number would be a class.
    """
    by_folder = settings["class_from"] == "folder"
    labels = [Path(file.path).parent.name if by_folder else file.row.label for file in files]
    word = next((k for k, label in enumerate(labels) if not label.isdecimal()), None)
    number = next((k for k, label in enumerate(labels) if label.isdecimal()), None)
    numbers = word is None
    if numbers and not by_folder:
        labels = [str(int(label)) for label in labels]
    elif word is not None and number is not None and not by_folder:
        raise FedLoomError(
            f"{files[word].row.where}: labels must be numbers alone, which class_names can name, "
            f"or words alone, got '{labels[word]}' beside '{labels[number]}' of "
            f"{files[number].row.where}"
        )
    keys = sorted(set(labels), key=lambda label: int(label) if numbers else label)
    names = dict.fromkeys(keys, "")
    for file, label in zip(files, labels, strict=True):
        name = file.row.name
        if name is not None and names[label] not in ("", name):
            line = f"class {label} is called '{name}' here, '{names[label]}' before"
            raise FedLoomError(f"{file.row.where}: {line}")
        names[label] = name or names[label]
    index = {label: place for place, label in enumerate(keys)}
    classes = [name or label for label, name in names.items()]
    return np.array([index[label] for label in labels]), classes, not numbers or any(names.values())
