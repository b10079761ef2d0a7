"""Hold the images and labels that a source lists; an image is read only when it is needed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_regular, is_folder, printable
from fedloom.data.pixels import decode_image
from fedloom.machine.install import resource


class Item(NamedTuple):
    """One image that has not been read yet."""

    # what errors call it, such as its path
    name: str
    # a function that reads and decodes it
    load: Callable[[], Image.Image]


@dataclass(frozen=True)
class ImageList:
    """The N images that a source lists.

    Attributes:
        items: a function that returns the images in order. It is called again if a coloured image
            follows grey ones.
        labels: int [N], the class of each image.
        classes: the names of the classes, in the order of their numbers.
        provenance: where the images come from, for the store's receipt.
        domains: str [N], the domain of each image; None if all images are of one domain. Test
            images may have NO_DOMAIN.
        test: bool [N], True for images of the official test split; None if there is none.
        named: False if `classes` are mere numbers, which a text prompt cannot use.
        test_split: how `test` was chosen, in words.
    """

    items: Callable[[], Iterable[Item]]
    labels: np.ndarray
    classes: list[str]
    provenance: str
    domains: np.ndarray | None = None
    test: np.ndarray | None = None
    named: bool = True
    test_split: str = "official"


@dataclass(frozen=True)
class Prepared(ImageList):
    """The images that go into a store, which have domains and a test split."""

    domains: np.ndarray = field(kw_only=True)
    test: np.ndarray = field(kw_only=True)


def root_folder(path: str, expected: str) -> Path:
    """Return the folder of a path in the config; raise a FedLoomError if there is none.

    `expected` says, for the error, which files the folder should hold.
    """
    root = resource(path)
    if not is_folder(root):
        raise FedLoomError(f"{printable(str(root))}: no such folder; put {expected} there")
    return root


def file_items(paths: Sequence[str]) -> Callable[[], Iterator[Item]]:
    """Return a function for `ImageList.items` that yields the image files at these paths."""
    return lambda: (Item(printable(path), partial(_load, path)) for path in paths)


def array_items(pixels: np.ndarray) -> Callable[[], Iterator[Item]]:
    """Return a function for `ImageList.items` that yields the images `pixels`, uint8 [N, H, W]."""
    return lambda: (Item(f"{k}", partial(Image.fromarray, image)) for k, image in enumerate(pixels))


def _load(path: str) -> Image.Image:
    """Read and decode an image file; raise a FedLoomError if it is a device or a pipe."""
    check_regular(path)
    return decode_image(path)


def check_columns(listed: ImageList) -> None:
    """Raise a FedLoomError if a column of a list has a wrong type or length."""
    count = len(listed.labels)
    expected_types = {
        "labels": ("iu", "integers"),
        "domains": ("U", "text"),
        "test": ("b", "booleans"),
    }
    for name, (type_codes, words) in expected_types.items():
        values = getattr(listed, name)
        if values is None:
            continue

        # an empty list has no type
        column = np.asarray(values)
        has_type = count == 0 or column.dtype.kind in type_codes
        if column.shape != (count,) or not has_type:
            raise FedLoomError(
                f"the source's {name} must be {words} [{count}], got an array {[*column.shape]} of "
                f"{column.dtype}"
            )
