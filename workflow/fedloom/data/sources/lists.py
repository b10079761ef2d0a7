"""Image files that lists name, with their classes: text, CSV, or JSON as CoOp's splits."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedloom.common.checkout import resource
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder, printable, walk
from fedloom.data.file_lists import Columns, Row, rows
from fedloom.data.image_files import load
from fedloom.data.listed import ImageList, Item
from fedloom.plan.listing import described

log = logging.getLogger(__name__)


class _File(NamedTuple):
    """An image file that a list names."""

    path: str
    row: Row
    domain: str
    test: bool


def read(settings: dict[str, Any]) -> ImageList:
    """List the images that the lists `train` and `test` name, in their order.

    Raises:
        FedLoomError: a list is missing or broken, or names a file that is not there; or one file
            twice; or the lists disagree on the names of classes.
    """
    root = resource(settings["root"])
    if not is_folder(root):
        raise FedLoomError(f"{printable(str(root))}: no such folder; put lists and images there")
    provenance = f"lists: {described(settings)}"
    files = _files(root, settings)
    labels, classes, named = _classes(files, settings)
    log.info("%s: %d images of %d classes in lists", root, len(files), len(classes))

    def items() -> Iterator[Item]:
        for file in files:
            yield Item(printable(file.path), partial(load, file.path))

    return ImageList(
        items=items,
        labels=labels,
        classes=classes,
        provenance=provenance,
        domains=np.array([file.domain for file in files]),
        test=np.array([file.test for file in files]) if "test" in settings else None,
        named=named,
    )


def _files(root: Path, settings: dict[str, Any]) -> list[_File]:
    """Return the files that the lists of both splits name.

    Raises:
        FedLoomError: see `read`.
    """
    images = root / settings["images"]
    if not is_folder(images):
        raise FedLoomError(f"{printable(str(images))}: no such folder, but images names it")
    anywhere = _by_name(images) if settings["anywhere"] else None
    columns = Columns(settings["path_column"], settings["label_column"], settings["domain_column"])
    if settings["class_from"] == "folder":
        columns = Columns(columns.path, None, columns.domain)
    files: list[_File] = []
    seen: dict[str, str] = {}
    for half in ("train", "test"):
        for list_file, domain in _lists(settings.get(half, [])):
            for row in rows(root / list_file, half, columns):
                path = _path(row, images, anywhere)
                if path in seen:
                    raise FedLoomError(f"{row.where}: names {path} again, after {seen[path]}")
                seen[path] = row.where
                files.append(_File(path, row, domain or row.domain or "all", half == "test"))
    return files


def _lists(given: str | list[str] | dict[str, str]) -> list[tuple[str, str]]:
    """Return the list files of a split, each with the domain that it is of, or ""."""
    if isinstance(given, dict):
        return [(file, domain) for domain, file in given.items()]
    return [(file, "") for file in ([given] if isinstance(given, str) else given)]


def _by_name(images: Path) -> dict[str, str]:
    """Return the path of every file below a folder by its name without suffix.

    Raises:
        FedLoomError: two files have one name.
    """
    found: dict[str, str] = {}
    for _, _, entries in walk(str(images)):
        for entry in entries:
            stem = Path(entry.name).stem
            if stem in found:
                raise FedLoomError(
                    f"{printable(entry.path)}: has the name of {printable(found[stem])}; lists "
                    "name images by their names alone (anywhere: true), so keep one of them"
                )
            found[stem] = entry.path
    return found


def _path(row: Row, images: Path, anywhere: dict[str, str] | None) -> str:
    """Return the path of the file that a row names.

    Raises:
        FedLoomError: it is not there.
    """
    if anywhere is not None:
        path = anywhere.get(row.path, "")
        if not path:
            raise FedLoomError(f"{row.where}: no image '{row.path}' anywhere below {images}")
        return path
    path = images / row.path
    if not path.is_file():
        raise FedLoomError(f"{row.where}: names {printable(str(path))}, which is not there")
    return str(path)


def _classes(files: list[_File], settings: dict[str, Any]) -> tuple[np.ndarray, list[str], bool]:
    """Return the class of every file, the classes, and whether these are more than numbers.

    Raises:
        FedLoomError: a label has two names.
    """
    if settings["class_from"] == "folder":
        found = [Path(file.path).parent.name for file in files]
    else:
        found = [file.row.label for file in files]
    numbers = all(label.isdecimal() for label in found)
    keys = sorted(set(found), key=lambda label: int(label) if numbers else label)
    names = dict.fromkeys(keys, "")
    for file, label in zip(files, found, strict=True):
        name = file.row.name
        if name is not None and names[label] not in ("", name):
            raise FedLoomError(
                f"{file.row.where}: class {label} is called '{name}' here, '{names[label]}' before"
            )
        names[label] = name or names[label]
    number = {label: index for index, label in enumerate(keys)}
    labels = np.array([number[label] for label in found])
    named = not numbers or any(names.values())
    return labels, [name or label for label, name in names.items()], named
