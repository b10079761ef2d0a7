"""Images in folders: root/[domain/]class/file, or the same below a train and a test folder."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedloom.common.errors import FedLoomError, shorten
from fedloom.common.folders import named_folder, printable, walk
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Count, Keys
from fedloom.config.datasets import ImageSource, TestFraction, describe_listing
from fedloom.config.image_lists import ListColumns, ListedImage, read_list_text, read_rows
from fedloom.data.image_list import ImageList, file_items, root_folder
from fedloom.data.labels import are_numbers, tidy, tidy_names
from fedloom.data.pixels import image_suffixes

log = logging.getLogger(__name__)

# names of folders that hold a split, in lower case
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
# suffixes of files beside images that are no images; all other files of a class must be images
NO_IMAGES = {
    ".csv", ".db", ".html", ".identifier", ".ini", ".json", ".jsonl", ".log", ".md", ".py",
    ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml",
}  # fmt: skip


class TestList(Keys):
    """Test images that lie in one folder, with a text file of their classes, as in TinyImageNet.

    Each line of the file names an image and its class.
    """

    file: str
    """The text file, relative to the folder of the test images."""
    images: str = "."
    """Folder of the images, relative to the folder of the test images."""


class TestLast(Keys):
    """Take the last `images` of every `of` images of a domain as test images.

    Images are counted in the order of the names of classes and of files (FedPHA's code: 2 of 10).
    `test_fraction` then has no effect.
    """

    images: Count
    """Number of test images among every `of` images."""
    of: Annotated[int, Field(ge=2)]
    """Number of images after which the count starts again."""


class Folder(ImageSource):
    """Image files in root/[domain/]class/, or in such folders below root/train and root/test.
    Folders at a deeper level than the keys say are an error.
    """

    root: str
    """Folder that holds the images."""
    domains: bool = False
    """Whether a level of folders, one per domain, lies above those of the classes."""
    classes_in: str | None = None
    """Name of the folder between every domain (or the root) and its classes, such as `images` in
    Office31."""
    images_in: str | None = None
    """Name of the folder between every class and its images, such as `images` in TinyImageNet."""
    names: str | None = None
    """Text file below the root with a line per class: its folder and its name, such as n01440764
    tench. Classes have these names, in this order. Where folders are numbers, they are numbers of
    lines, from 0."""
    renamed: dict[str, str] = Field({})
    """Maps folders in `names` to other class names, for instance where two classes have one
    name."""
    split: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    """The two folders of the training and the test images, relative to the root. Default: train and
    test, if root holds these two folders and no others; if not, `test_fraction` of the images
    become test images."""
    test_list: TestList | None = None
    test_last: TestLast | None = None
    test_fraction: TestFraction = 0.3


def read(settings: JsonDict) -> ImageList:
    """List the images of a folder.

    Domains have the names of their folders. Classes have the names of their folders, or those in
    the file `names`.
    """
    # the folder, and its split
    root = root_folder(settings["root"], "[domain/]class/file or {train,test}/[domain/]class/file")
    # this call raises an error if links lead in a circle
    provenance = f"folder: {describe_listing(settings)}"
    split = _split(root, settings)
    if "test_list" in settings and not split:
        raise FedLoomError(
            "test_list needs the key split, whose test folder holds the list; set it"
        )
    if "test_last" in settings and split:
        raise FedLoomError(f"test_last: {root} has a folder of test images; leave it out")

    # the files of the training and the test folder, or of the only folder
    files: list[ListedImage] = []
    for name, test in zip(split or ["."], (False, True), strict=False):
        if test and "test_list" in settings:
            trained = {tidy(file.label) for file in files}
            files += _listed(root / name, trained, **settings["test_list"])
        else:
            files += _tree(root / name, test, settings)

    # their classes and domains
    labels = tidy_names([file.label for file in files])
    classes = _classes(root, {*labels}, settings)
    number = {folder: label for label, folder in enumerate(classes)}
    domains = np.array(tidy_names([file.domain for file in files]))

    # the test split
    test = None
    rule = "official"
    if split:
        test = np.array([file.test for file in files])
    if "test_last" in settings:
        test, rule = _last(domains, **settings["test_last"])

    return ImageList(
        items=file_items([file.path for file in files]),
        labels=np.array([number[label] for label in labels]),
        classes=[*classes.values()],
        provenance=provenance,
        domains=domains,
        test=test,
        named="names" in settings or not are_numbers(classes),
        test_split=rule,
    )


def _split(root: Path, settings: JsonDict) -> list[str]:
    """Return the names of the training and the test folder, or [] without an official split.

    Raises a FedLoomError if folders such as `val` look like a split that the config does not name.
    """
    # the folders that the config names, or else `train` and `test`
    folder, names, entries = next(walk(str(root)))
    chosen = settings.get("split")
    if chosen is None and {*names} == {"train", "test"}:
        chosen = ["train", "test"]

    # other folders of a split would be taken for classes; but if classes_in names a folder below
    # the root, only that folder is read
    halves = [name for name in names if name.lower() in SPLITS]
    one_folder = "classes_in" in settings and not settings["domains"]
    if chosen is None and not one_folder and halves and (len(halves) > 1 or halves == names):
        raise FedLoomError(
            f"{root} holds the folders {', '.join(halves)}; name those of training and test "
            "images, as in split: [train, val], or set root to one of them"
        )

    for name in chosen or []:
        named_folder(root / name, "split")
    if chosen:
        _check_no_images(folder, entries)
    return chosen or []


def _tree(base: Path, test: bool, settings: JsonDict) -> Iterator[ListedImage]:
    """Yield the images below a folder in a fixed order.

    Raises a FedLoomError if the levels of folders are not those that the keys describe.
    """
    # the name of the folder at each level, or * for a level with a folder per domain or class
    above = Path(settings.get("classes_in", "")).parts
    below = Path(settings.get("images_in", "")).parts
    domain_layers = ("*",) if settings["domains"] else ()
    layers = (*domain_layers, *above, "*", *below)

    for folder, inner, entries in walk(str(base)):
        parts = Path(folder).relative_to(base).parts
        if any(layer not in ("*", part) for layer, part in zip(layers, parts, strict=False)):
            continue

        # a folder above the folders of images
        if len(parts) < len(layers):
            layer = layers[len(parts)]
            if not inner or layer not in ("*", *inner):
                raise FedLoomError(
                    f"{folder}/{layer}: no such folder; correct domains, classes_in or images_in"
                )
            _check_no_images(folder, entries)
            continue

        # a folder of images
        if inner:
            name = printable(inner[0])
            own = parts[-1]
            raise FedLoomError(
                f"{folder}: a folder '{name}' where images should be; remove it, or, if it is of a "
                "layer of folders, set domains: true (for root/domain/class/file), images_in: "
                f"{name} (for class/{name}/file) or classes_in: {own} (for domain/{own}/class/file)"
            )
        images = [entry.path for entry in entries if _may_be_image(entry.name)]
        if not images:
            raise FedLoomError(f"{folder}: a class folder without images; fill or remove it")
        if len(images) < len(entries):
            others = [entry.name for entry in entries if not _may_be_image(entry.name)]
            _log_left_out(folder, others)

        # two folders of the path name the class and the domain
        label = parts[-1 - len(below)]
        domain = "all"
        if settings["domains"]:
            domain = parts[0]
        for path in images:
            yield ListedImage(path, label, domain, test)


def _may_be_image(path: str) -> bool:
    """Return False for texts and data beside images; Pillow decides about the rest."""
    return Path(path).suffix.lower() not in NO_IMAGES


def _check_no_images(folder: str, entries: list[os.DirEntry]) -> None:
    """Refuse images that lie above the folders of classes; the log names other files there."""
    for entry in entries:
        if Path(entry.name).suffix.lower() in image_suffixes():
            raise FedLoomError(
                f"{printable(entry.path)}: an image that lies in no folder of a class; move it "
                "into one, or remove it"
            )
    if entries:
        _log_left_out(folder, [entry.name for entry in entries])


def _log_left_out(folder: str, names: list[str]) -> None:
    """Write to the log that these files of a folder are no images."""
    log.info(
        "%s: left out %d files that are no images: %s",
        printable(folder),
        len(names),
        printable(shorten(", ".join(names))),
    )


def _listed(base: Path, classes: set[str], file: str, images: str) -> list[ListedImage]:
    """Return the test images in the folder `images`, with their classes from the list `file`.

    Both paths start from the folder `base`. Raises a FedLoomError if the list does not name every
    image once, or names a class that is not among the classes of the training images, `classes`.
    """
    # the images in the folder, without the list itself
    folder = named_folder(base / images, "test_list")
    left = dict[str, None]()
    for _, _, entries in walk(str(folder)):
        for entry in entries:
            if _may_be_image(entry.path):
                left[entry.path] = None
    left.pop(f"{base / file}", None)

    # the images that the list names
    files = []
    for row in read_rows(base / file, "test", ListColumns()):
        path = f"{base / images}/{os.path.normpath(row.path)}"
        if path not in left:
            raise FedLoomError(
                f"{row.where}: {printable(path)} must exist and be named once; correct the list"
            )
        if tidy(row.label) not in classes:
            raise FedLoomError(
                f"{row.where}: class '{row.label}' has no training images; correct the list"
            )
        del left[path]
        files.append(row._replace(path=path, domain="all"))

    if left:
        raise FedLoomError(
            f"{base / file}: leaves out {len(left)} of {len(files) + len(left)} images, as "
            f"{printable(next(iter(left)))}; add them to the list, or remove them"
        )
    return files


def _classes(root: Path, folders: set[str], settings: JsonDict) -> dict[str, str]:
    """Return the name of the class of every folder, in the order of the classes.

    Raises a FedLoomError if the file `names` has no line for a folder.
    """
    if "names" not in settings:
        return {folder: folder for folder in sorted(folders)}

    # the lines of the file: a folder and the name of its class
    file = root / settings["names"]
    lines = [line.split(maxsplit=1) for line in read_list_text(file).splitlines()]
    named = [line for line in lines if len(line) == 2]

    # the line of each folder; if a folder's name is a number, it is the number of a line
    line_by_folder = {str(number): number for number in range(len(named))}
    for number, (folder, _) in enumerate(named):
        line_by_folder[tidy(folder)] = number
    unnamed = folders - line_by_folder.keys()
    if unnamed:
        raise FedLoomError(
            f"{file}: no name for the folder '{min(unnamed)}'; add a line, or remove it"
        )

    # classes in the order of these lines
    classes = dict[str, str]()
    for folder in sorted(folders, key=line_by_folder.__getitem__):
        in_file, name = named[line_by_folder[folder]]
        classes[folder] = tidy(settings["renamed"].get(in_file, name))
    return classes


def _last(domains: np.ndarray, images: int, of: int) -> tuple[np.ndarray, str]:
    """Choose the last `images` of every `of` images of each domain.

    Returns the chosen images, bool [N], and the rule in words.
    """
    test = np.zeros(len(domains), bool)
    for name in np.unique(domains):
        rows = np.flatnonzero(domains == name)
        test[rows] = np.arange(len(rows)) % of >= of - images
    return test, f"the last {images} of every {of} images of a domain"
