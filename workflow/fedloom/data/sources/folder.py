"""Images in folders: root/[domain/]class/file, or the same below a train and a test folder.

A layer of folders that names nothing is stated: `classes_in` above the classes, `images_in` below
them. A tree that is deeper than stated is refused.
"""

import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field

from fedloom.common.checkout import resource
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder, printable, walk
from fedloom.common.schema import Count, Keys
from fedloom.config.datasets import ClassPerDomain, ImageSource, TestFraction, described
from fedloom.data import split_files
from fedloom.data.image_files import load
from fedloom.data.image_list import ImageList, Item

log = logging.getLogger(__name__)
SPLITS = {"train", "test", "val", "valid", "validation"}


class TestList(Keys):
    """The test images lie in one folder, and a text file gives file and class of each in a line.

    So it is with TinyImageNet.
    """

    file: str
    """Below the folder of the test images."""
    images: str = "."
    """Their folder, below that of the test images."""


class TestLast(Keys):
    """The last `images` of every `of` images of a domain are test images, not test_fraction.

    They count in the order of names of classes and of files (FedPHA's code: 2 of 10).
    """

    images: Count
    of: Annotated[int, Field(ge=2)]


class Folder(ImageSource):
    """Image files in root/[domain/]class/, or below root/train and root/test; a tree that is deeper
    than the keys say is refused.
    """

    root: str
    """Relative paths start at the checkout."""
    domains: bool = False
    """A layer of domains above classes."""
    classes_in: str | None = None
    """A folder between every domain (or the root) and its classes, as images of Office31."""
    images_in: str | None = None
    """A folder between every class and its images, as images of TinyImageNet."""
    class_per_domain: ClassPerDomain = False
    split: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    """Folders of the training and the test images; default: train and test if root holds these two
    and nothing else, else test_fraction is drawn."""
    test_list: TestList | None = None
    test_last: TestLast | None = None
    test_fraction: TestFraction = 0.3


class _File(NamedTuple):
    """An image file, with the names of its folders."""

    path: str
    label: str
    domain: str
    test: bool


def read(settings: dict[str, Any]) -> ImageList:
    """List the images of a folder; classes and domains are named as their folders.

    Raises:
        FedLoomError: there is no such folder, or its layout is not as `domains` and `split` say, or
            a class folder is without images, or a list is not as its images.
    """
    root = resource(settings["root"])
    if not is_folder(root):
        layout = "[domain/]class/file or {train,test}/[domain/]class/file"
        raise FedLoomError(f"{printable(str(root))}: no such folder; expected {layout} in it")
    if settings["class_per_domain"] and not settings["domains"]:
        raise FedLoomError("class_per_domain needs domains: true, and a layer of folders for them")
    provenance = f"folder: {described(settings)}"  # links in circles are found here
    files, official = _files(root, settings)
    test, rule = np.array([file.test for file in files]), "official"
    if "test_last" in settings:
        if official:
            raise FedLoomError("test_last and a folder of test images; leave test_last out")
        test, rule = _last(np.array([file.domain for file in files]), **settings["test_last"])
    classes = sorted({file.label for file in files})
    number = {name: label for label, name in enumerate(classes)}
    log.info("%s: %d images of %d classes", root, len(files), len(classes))

    def items() -> Iterator[Item]:
        for file in files:
            yield Item(printable(file.path), partial(load, file.path))

    return ImageList(
        items=items,
        labels=np.array([number[file.label] for file in files]),
        classes=classes,
        provenance=provenance,
        domains=np.array([file.domain for file in files]),
        test=test if official or "test_last" in settings else None,
        test_split=rule,
    )


def _files(root: Path, settings: dict[str, Any]) -> tuple[list[_File], bool]:
    """Return every image in a fixed order, and True if the folders name the test images."""
    split = _split(root, settings.get("split"))
    halves = [(root / name, test) for name, test in zip(split, (False, True), strict=False)]
    if "test_list" in settings and not halves:
        raise FedLoomError("test_list needs split, which names the folder that it lies in")
    files, other = [], 0
    for base, test in halves or [(root, False)]:
        if test and "test_list" in settings:
            files += _listed(base, {file.label for file in files}, **settings["test_list"])
            continue
        domains = _folders(base) if settings["domains"] else [base]
        for domain in domains:
            for folder in _class_folders(domain, settings):
                paths, left = _images(folder, settings)
                other += left
                name = domain.name if settings["domains"] else "all"
                files += [_File(path, folder.name, name, test) for path in paths]
    if other:
        log.info("%d files are no images by their names and are left out", other)
    return files, bool(halves)


def _last(domains: np.ndarray, images: int, of: int) -> tuple[np.ndarray, str]:
    """Choose the last `images` of every `of` images of each domain; return them, and the rule.

    Args:
        domains: str [N], in the order of images.

    Returns:
        bool [N], and words for the receipt.

    Raises:
        FedLoomError: no image would be left to train on.
    """
    if images >= of:
        raise FedLoomError(f"test_last: {images} of {of} leave no image to train on")
    test = np.zeros(len(domains), bool)
    for name in np.unique(domains):
        rows = np.flatnonzero(domains == name)
        test[rows] = np.arange(len(rows)) % of >= of - images
    return test, f"the last {images} of every {of} images of a domain"


def _listed(base: Path, classes: set[str], file: str, images: str) -> list[_File]:
    """Return the test images that lie in one folder, with the classes that a list gives them.

    Args:
        base: the folder of the split.
        classes: of the training images.
        file, images: of the list and of the images, below it.

    Raises:
        FedLoomError: the list is missing or broken, names an image that is not there, one twice or
            of an unknown class, or leaves one out.
    """
    folder = base / images
    if not is_folder(folder):
        raise FedLoomError(f"{folder}: no such folder, but test_list names it")
    there = [entry.path for _, _, entries in walk(str(folder)) for entry in entries]
    left, files = dict.fromkeys(there), []
    for row in split_files.rows(base / file, "test", split_files.Columns()):
        path = f"{folder}/{os.path.normpath(row.path)}"
        if path not in left:
            why = "again" if path in there else "which is not there"
            raise FedLoomError(f"{row.where}: names {printable(path)}, {why}")
        if row.label not in classes:
            raise FedLoomError(
                f"{row.where}: class '{row.label}' has no training images; mend the list, or add "
                "a folder of them"
            )
        del left[path]
        files.append(_File(path, row.label, "all", True))
    extensions = Image.registered_extensions()
    missing = [path for path in left if Path(path).suffix.lower() in extensions]
    if missing:
        raise FedLoomError(
            f"{base / file}: leaves out {len(missing)} of {len(files) + len(missing)} images, as "
            f"{printable(missing[0])}; add them to the list, or remove them"
        )
    return files


def _split(root: Path, chosen: list[str] | None) -> list[str]:
    """Return the names of the training and the test folder, or [] without official split."""
    names = {folder.name for folder in _folders(root)}
    if chosen is None and names == {"train", "test"}:
        return ["train", "test"]
    if chosen is None and "train" in names and names <= SPLITS:
        raise FedLoomError(
            f"{root} holds {', '.join(sorted(names))}: name the folders of training and test "
            "images, as in split: [train, val], or set root to one of them"
        )
    for name in chosen or []:
        if name not in names:
            raise FedLoomError(f"{root / name}: no such folder, but split names it")
    return chosen or []


def _folders(folder: Path) -> list[Path]:
    """List the folders in a folder, which name domains or classes.

    Raises:
        FedLoomError: a name that is not text.
    """
    _, names, _ = next(walk(str(folder)))
    for name in names:
        if not name.isprintable():
            path = printable(f"{folder}/{name}")
            raise FedLoomError(f"{path}: names a class or domain but is not UTF-8 text; rename it")
    return [folder / name for name in names]


def _class_folders(folder: Path, settings: dict[str, Any]) -> list[Path]:
    """List the folders of the classes below the folder of a domain, or of all.

    Raises:
        FedLoomError: there are none, or there is another layer of folders than `settings` say.
    """
    folder = _layer(folder, settings, "classes_in")
    folders = _folders(folder)
    if not folders:
        domains = settings["domains"]
        hint = " (or is there no layer of domains? then set domains: false)" if domains else ""
        raise FedLoomError(f"{folder}: no class folders in it{hint}")
    return folders


def _layer(folder: Path, settings: dict[str, Any], key: str) -> Path:
    """Return the folder within another that a key names, or the other one without the key."""
    if key not in settings:
        return folder
    folder = folder / settings[key]
    if not is_folder(folder):
        raise FedLoomError(f"{folder}: no such folder, but {key} names it")
    return folder


def _images(folder: Path, settings: dict[str, Any]) -> tuple[list[str], int]:
    """List the images of one class, and count other files.

    Raises:
        FedLoomError: there are none, or there are folders where they should be.
    """
    folder = _layer(folder, settings, "images_in")
    extensions = Image.registered_extensions()
    _, folders, files = next(walk(str(folder)))
    if folders:
        raise FedLoomError(_too_deep(folder, folders, bool(files), settings))
    images = [f.path for f in files if Path(f.name).suffix.lower() in extensions]
    if not images:
        raise FedLoomError(f"{folder}: a class folder without images; fill or remove it")
    return images, len(files) - len(images)


def _too_deep(folder: Path, inner: list[str], files: bool, settings: dict[str, Any]) -> str:
    """Return the line of an error that says what to set for a tree deeper than stated.

    Args:
        folder: of a class, as `settings` have it.
        inner: names of the folders in it.
        files: True if there are files beside them.
    """
    line = f"{folder}: a folder '{printable(inner[0])}' where images should be"
    if files or settings.get("images_in"):
        return f"{line}; remove or move it"
    if len(inner) > 1 and not settings["domains"]:
        return f"{line}; for root/domain/class/file set domains: true"
    if len(inner) > 1:
        return f"{line}; for domain/{folder.name}/class/file set classes_in: {folder.name}"
    return f"{line}; for class/{inner[0]}/file set images_in: {inner[0]}"
