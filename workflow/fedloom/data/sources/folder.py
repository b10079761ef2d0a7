"""Images in folders: root/[domain/]class/file, or the same below a train and a test folder."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder, printable, walk
from fedloom.common.schema import Count, Keys
from fedloom.config.datasets import ClassPerDomain, ImageSource, TestFraction, described
from fedloom.data import split_files
from fedloom.data.image_list import ImageList, file_items, root_folder

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
    """The folder that holds the files."""
    domains: bool = False
    """A layer of domains above classes."""
    classes_in: str | None = None
    """A folder between every domain (or the root) and its classes, as images of Office31."""
    images_in: str | None = None
    """A folder between every class and its images, as images of TinyImageNet."""
    names: str | None = None
    """A text file below the root with a folder and its class's name in a line, as n01440764 tench;
    classes have these names, in this order. Where folders are numbers, 0 is the first line."""
    renamed: dict[str, str] = Field({})
    """Other names for some of the folders in `names`, such as two of one name: folder -> name."""
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
    """List the images of a folder; domains are named as their folders, and classes by `names`."""
    root = root_folder(settings["root"], "[domain/]class/file or {train,test}/[domain/]class/file")
    if settings["class_per_domain"] and not settings["domains"]:
        raise FedLoomError("class_per_domain needs domains: true, and a layer of folders for them")
    provenance = f"folder: {described(settings)}"  # links in circles are found here
    files, official = _files(root, settings)
    classes = _classes(root, {file.label for file in files}, settings)
    number = {folder: label for label, folder in enumerate(classes)}
    domains = np.array([file.domain for file in files])
    test, rule = np.array([file.test for file in files]), "official"
    if "test_last" in settings:
        if official:
            raise FedLoomError("test_last and a folder of test images; leave test_last out")
        test, rule = _last(domains, **settings["test_last"])
    log.info("%s: %d images of %d classes", root, len(files), len(classes))
    return ImageList(
        items=file_items([file.path for file in files]),
        labels=np.array([number[file.label] for file in files]),
        classes=[*classes.values()],
        provenance=provenance,
        domains=domains,
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
        for domain in _folders(base) if settings["domains"] else [base]:
            for folder in _class_folders(domain, settings):
                paths, left = _images(folder, settings)
                other += left
                name = domain.name if settings["domains"] else "all"
                files += [_File(path, folder.name, name, test) for path in paths]
    if other:
        log.info("%d files have no image's suffix and are left out", other)
    return files, bool(halves)


def _classes(root: Path, folders: set[str], settings: dict[str, Any]) -> dict[str, str]:
    """Return the name of every folder's class, in the order of the classes."""
    if "names" not in settings:
        return {folder: folder for folder in sorted(folders)}
    file = root / settings["names"]
    lines = [line.split(maxsplit=1) for line in split_files.text_of(file, "classes").splitlines()]
    named = [line for line in lines if len(line) == 2]
    place = {str(at): at for at in range(len(named))}
    place |= {folder: at for at, (folder, _) in enumerate(named)}
    unnamed = sorted(folders - place.keys())
    if unnamed:
        raise FedLoomError(
            f"{file}: no name for the folder '{unnamed[0]}'; add a line, or remove it"
        )
    ordered = sorted(folders, key=place.__getitem__)
    return {folder: settings["renamed"].get(*named[place[folder]]).strip() for folder in ordered}


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
        _below(root, name, "split")
    return chosen or []


def _last(domains: np.ndarray, images: int, of: int) -> tuple[np.ndarray, str]:
    """Choose the last `images` of every `of` images of each domain, bool [N]; add the rule."""
    if images >= of:
        raise FedLoomError(f"test_last: {images} of {of} leave no image to train on")
    test = np.zeros(len(domains), bool)
    for name in np.unique(domains):
        rows = np.flatnonzero(domains == name)
        test[rows] = np.arange(len(rows)) % of >= of - images
    return test, f"the last {images} of every {of} images of a domain"


def _listed(base: Path, classes: set[str], file: str, images: str) -> list[_File]:
    """Return the test images of the folder `images`, each once in the list `file`, below `base`.

    Their classes must be among those of the training images, `classes`.
    """
    folder = _below(base, images, "test_list")
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
    missing = list(filter(_has_images_suffix, left))
    if missing:
        raise FedLoomError(
            f"{base / file}: leaves out {len(missing)} of {len(files) + len(missing)} images, as "
            f"{printable(missing[0])}; add them to the list, or remove them"
        )
    return files


def _has_images_suffix(path: str) -> bool:
    return Path(path).suffix.lower() in Image.registered_extensions()


def _below(folder: Path, name: str, key: str) -> Path:
    """Return the folder within another that a key names."""
    if not is_folder(folder / name):
        raise FedLoomError(f"{folder / name}: no such folder, but {key} names it")
    return folder / name


def _folders(folder: Path) -> list[Path]:
    """List the folders in a folder, which name domains or classes."""
    _, names, _ = next(walk(str(folder)))
    for name in names:
        if not name.isprintable():
            path = printable(f"{folder}/{name}")
            raise FedLoomError(f"{path}: names a class or domain but is not UTF-8 text; rename it")
    return [folder / name for name in names]


def _class_folders(folder: Path, settings: dict[str, Any]) -> list[Path]:
    """List the folders of the classes below the folder of a domain, or of all."""
    if "classes_in" in settings:
        folder = _below(folder, settings["classes_in"], "classes_in")
    folders = _folders(folder)
    if not folders:
        domains = settings["domains"]
        hint = " (or is there no layer of domains? then set domains: false)" if domains else ""
        raise FedLoomError(f"{folder}: no class folders in it{hint}")
    return folders


def _images(folder: Path, settings: dict[str, Any]) -> tuple[list[str], int]:
    """List the images of one class, and count other files."""
    if "images_in" in settings:
        folder = _below(folder, settings["images_in"], "images_in")
    _, inner, files = next(walk(str(folder)))
    if inner:
        if files or "images_in" in settings:
            advice = "remove or move it"
        elif len(inner) == 1:
            advice = f"for class/{inner[0]}/file set images_in: {inner[0]}"
        elif settings["domains"]:
            advice = f"for domain/{folder.name}/class/file set classes_in: {folder.name}"
        else:
            advice = "for root/domain/class/file set domains: true"
        line = f"a folder '{printable(inner[0])}' where images should be; {advice}"
        raise FedLoomError(f"{folder}: {line}")
    images = [file.path for file in files if _has_images_suffix(file.name)]
    if not images:
        raise FedLoomError(f"{folder}: a class folder without images; fill or remove it")
    return images, len(files) - len(images)
