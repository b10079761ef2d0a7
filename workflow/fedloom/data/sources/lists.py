"""Image files that lists name, with their classes; see config/image_lists.py for the formats."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import OneOrMore
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, described
from fedloom.config.image_lists import Row, listed_files
from fedloom.data.image_list import ImageList, file_items, root_folder
from fedloom.data.labels import are_numbers, classes_of, tidied, tidy

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


def read(settings: dict[str, Any]) -> ImageList:
    """List the images that the lists `train` and `test` name, in their order."""
    root = root_folder(settings["root"], "lists and images")
    provenance = f"lists: {described(settings)}"
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
        domains=np.array(tidied([file.domain for file in files])),
        test=test,
        named=named,
    )


def _classes(files: list[Row], settings: dict[str, Any]) -> tuple[np.ndarray, list[str], bool]:
    """Return the class of every file, the classes, and whether these are more than numbers."""
    if settings["class_from"] == "folder":
        return _by_folder(tidied([Path(file.path).parent.name for file in files]))
    found = classes_of([file.label for file in files], lambda image: files[image].where)

    # the name of each class, which all files that have one must agree on
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
    """Return the class of every image, which its folder names, as `_classes`."""
    numbers = all(folder.isdecimal() for folder in folders)
    classes = sorted({*folders}, key=int if numbers else str)
    number = {folder: place for place, folder in enumerate(classes)}
    return np.array([number[folder] for folder in folders]), classes, not are_numbers(classes)
