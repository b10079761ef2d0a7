"""What a source returns: the images that there are, none of them read yet, with their labels."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedloom.common.errors import FedLoomError

if TYPE_CHECKING:
    from PIL import Image

# domain of test images that are of none: in a partition by domains they go to clients by class
NO_DOMAIN = ""


class Item(NamedTuple):
    """One image that has not been read yet.

    Attributes:
        name: how an error names it, such as its path.
        load: reads and decodes it.
    """

    name: str
    load: "Callable[[], Image.Image]"


@dataclass(frozen=True)
class ImageList:
    """What a source returns: its images with their labels, none of them read yet.

    Attributes:
        items: returns the N images in order; called again if the first ones are grey and a later
            one is not.
        labels: int [N], the class of each image.
        classes: the classes' names, in the order of their numbers.
        provenance: where the images come from, for the store's receipt.
        domains: str [N]; None if all images are of one domain. Test images may be of NO_DOMAIN.
        test: bool [N], the official test split; None if there is none.
        named: False where `classes` are mere numbers, which no prompt can be made of.
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
class Prepared:
    """The images of a dataset, none of them read yet, as `fedloom.data.preparation` chose them.

    Attributes:
        items, classes, provenance, named, test_split: see ImageList.
        labels: int [N].
        domains: str [N].
        test: bool [N].
    """

    items: Callable[[], Iterable[Item]]
    labels: np.ndarray
    classes: list[str]
    provenance: str
    domains: np.ndarray
    test: np.ndarray
    named: bool
    test_split: str


def check_list(listed: ImageList) -> None:
    """Require columns of the right types and of one length.

    Raises:
        FedLoomError: names the column of the list.
    """
    kinds = {"labels": ("iu", "integers"), "domains": ("U", "text"), "test": ("b", "booleans")}
    for name, (kind, words) in kinds.items():
        column = getattr(listed, name)
        if column is None and name != "labels":
            continue
        column = np.asarray(column)
        if column.ndim != 1 or (len(column) and column.dtype.kind not in kind):
            raise FedLoomError(
                f"the source's {name} are an array {[*column.shape]} of {column.dtype}; expected "
                f"{words} [N]"
            )
        if len(column) != len(listed.labels):
            raise FedLoomError(
                f"the source lists {len(listed.labels)} labels, but {len(column)} {name}"
            )
    if not all(isinstance(name, str) for name in listed.classes):
        raise FedLoomError("the source's classes are not all text; name them, if by numbers")


def counted(listed: ImageList) -> Iterator[Item]:
    """Yield the items of a list.

    Raises:
        FedLoomError: they are more or fewer than the labels.
    """
    count = 0
    for item in listed.items():
        count += 1
        if count > len(listed.labels):
            break
        yield item
    if count != len(listed.labels):
        more = "more" if count > len(listed.labels) else str(count)
        raise FedLoomError(f"the source lists {len(listed.labels)} labels, but {more} items")


def check_labels(listed: ImageList, classes: int) -> None:
    """Require that every label is the number of a class.

    Raises:
        FedLoomError: names the first image of which it is not.
    """
    outside = np.flatnonzero((listed.labels < 0) | (listed.labels >= classes))
    if len(outside):
        item = next(item for row, item in enumerate(listed.items()) if row == outside[0])
        label = listed.labels[outside[0]]
        raise FedLoomError(f"{item.name}: label {label} is not in 0..{classes - 1}")
