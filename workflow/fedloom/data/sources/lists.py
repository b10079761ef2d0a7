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
    return ImageList(
        items=file_items([file.path for file in files]),
        labels=labels,
        classes=classes,
        provenance=provenance,
        domains=np.array([file.domain for file in files]),
        test=np.array([file.test for file in files]) if "test" in settings else None,
        named=named,
    )


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
