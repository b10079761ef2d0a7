"""Read images that list files name together with their classes.

config/image_lists.py explains the formats of lists.
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import OneOrMore
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, describe_listing
from fedloom.config.image_lists import ListedImage, listed_files
from fedloom.data.image_list import ImageList, file_items, root_folder
from fedloom.data.labels import are_numbers, classes_from_labels, tidy, tidy_names

FileLists = OneOrMore[str] | Annotated[dict[str, OneOrMore[str]], Field(min_length=1)]


class Lists(ImageSource):
    """Image files that lists name with their classes. A list is a text file with a path and a class
    in each line, a .csv file, or a .json file in the form of CoOp's splits.
    """

    root: str
    """Folder that holds the lists and the images."""
    train: FileLists
    """The list of the training images, as a path relative to the root. It may be several lists, or
    a mapping from each domain to its list or lists."""
    test: FileLists | None = None
    """The lists of the test images, in the same form as `train`. Default: `test_fraction` of the
    images in `train` become test images."""
    images: str | Annotated[dict[str, str], Field(min_length=1)] = "."
    """Folder below the root from which the paths in the lists start. It may be a mapping to such
    folders, by domain, or by `train` and `test` where the lists have no domains."""
    anywhere: bool = False
    """Whether the lists name images without folder and suffix. They are then looked up in all
    folders below `images`."""
    path_column: str | int = 0
    """Column with the path of the image: its name in a .csv file, or its number, from 0, in a text
    file."""
    label_column: str | int = 1
    """Column with the class: its name in a .csv file, or its number, from 0, in a text file."""
    domain_column: str | int | None = None
    """Column with the domain: its name in a .csv file, or its number, from 0, in a text file.
    Default: all images are of one domain. Images of a test list without this column go, in a
    partition by domains, to clients that hold their class."""
    class_from: Literal["label", "folder"] = "label"
    """What names the class of an image: the `label` in the list, or the `folder` that the image
    lies in."""
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


def read(settings: JsonDict) -> ImageList:
    """List the images that the lists `train` and `test` name, in the order of the lists."""
    root = root_folder(settings["root"], "lists and images")
    provenance = f"lists: {describe_listing(settings)}"
    files = listed_files(root, settings)
    labels, classes, named = _classes(files, settings)
    test = None
    if "test" in settings:
        test = np.array([file.test for file in files])
    return ImageList(
        items=file_items([file.path for file in files]),
        labels=labels,
        classes=classes,
        provenance=provenance,
        domains=np.array(tidy_names([file.domain for file in files])),
        test=test,
        named=named,
    )


def _classes(files: list[ListedImage], settings: JsonDict) -> tuple[np.ndarray, list[str], bool]:
    """Return the class of every file, [N], the names of the classes, and whether they are words.

    Raises a FedLoomError if lists give a class two names.
    """
    if settings["class_from"] == "folder":
        return _by_folder(tidy_names([Path(file.path).parent.name for file in files]))
    found = classes_from_labels([file.label for file in files], lambda image: files[image].where)

    # the name of each class; all lines that state a name must agree on it
    names: list[str | None] = [None] * len(found.labels)
    for file, number in zip(files, found.numbers.tolist(), strict=True):
        if file.name is None:
            continue

        name = tidy(file.name)
        before = names[number]
        if before not in (None, name):
            label = found.labels[number]
            raise FedLoomError(
                f"{file.where}: class {label} is called '{name}' here, '{before}' before; "
                "correct it"
            )
        names[number] = name

    classes = [name or label for name, label in zip(names, found.labels, strict=True)]
    return found.numbers, classes, found.named or any(names)


def _by_folder(folders: list[str]) -> tuple[np.ndarray, list[str], bool]:
    """Return what `_classes` returns, if an image's folder names its class."""
    numbers = all(folder.isdecimal() for folder in folders)
    classes = sorted({*folders}, key=int if numbers else str)
    number = {folder: place for place, folder in enumerate(classes)}
    return np.array([number[folder] for folder in folders]), classes, not are_numbers(classes)
