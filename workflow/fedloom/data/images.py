"""Turn images as people have them into a store: decoded, of one shape, in one pass."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fedloom.common.errors import FedLoomError
from fedloom.common.logs import progress
from fedloom.data import store
from fedloom.data.classes import check_names, log_shared_classes, per_domain, renamed
from fedloom.data.splits import Split, fixed_test_split

log = logging.getLogger(__name__)

# On damaged files Pillow's decoders raise OSError, SyntaxError, ValueError, RuntimeError,
# struct.error, DecompressionBombError and more.
UNREADABLE = Exception
# resized to more pixels than this an image is refused, as Pillow refuses to read one
LARGEST = 178_956_970
GREY = ("1", "L", "LA", "La")
GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")


class Item(NamedTuple):
    """One image that has not been read yet.

    Attributes:
        name: how an error names it, such as its path.
        load: reads and decodes it.
    """

    name: str
    load: Callable[[], Image.Image]


@dataclass(frozen=True)
class ImageList:
    """What a source returns: its images with their labels, none of them read yet.

    Attributes:
        items: returns the N images in order; called again if the first ones are grey and a later
            one is not.
        labels: int [N], the class of each image.
        classes: the classes' names, in the order of their numbers.
        provenance: where the images come from, for the store's receipt.
        domains: str [N]; None if all images are of one domain.
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


class _ColourAfterGreyError(Exception):
    """A coloured image follows grey ones, which were written with one channel."""


class _Row(NamedTuple):
    """One image of a list, with all that is known before it is read."""

    item: Item
    label: int
    test: bool
    domain: str


def write_store(listed: ImageList, settings: dict[str, Any], path: Path) -> None:
    """Read the listed images one at a time and write them into the store `path`.

    Grey images stay grey and coloured ones become RGB; where both occur, all are RGB. Transparency
    and EXIF orientation are ignored, as torchvision does.

    Args:
        settings: of the dataset; the keys `class_names`, `class_per_domain`, `test_fraction`,
            `image_size` and `skip_unreadable` are read, where they are there.

    Raises:
        FedLoomError: names the first image that is unreadable (unless skipped), of another size
            than the first one, or of a class that is not in `classes`; or the class of which no
            image (no training image) can be read; or nothing is left, or no test image; or there
            are not as many `class_names` as classes, or a name that is not text.
    """
    _check_list(listed)
    labels, classes, named = listed.labels, listed.classes, listed.named
    if not len(labels):
        raise FedLoomError(f"there are no images ({listed.provenance})")
    domains = np.full(len(labels), "all") if listed.domains is None else listed.domains
    classes, named = renamed(classes, named, settings.get("class_names"))
    _check_labels(listed, len(classes))
    if settings.get("class_per_domain"):
        labels, classes = per_domain(labels, classes, domains)
    else:
        log_shared_classes(labels, classes, domains, "class_per_domain" in settings)
    check_names(classes)
    split = _split(listed, labels, domains, settings)
    rgb = False
    while True:
        rows = (
            _Row(item, int(label), bool(test), str(domain))
            for item, label, test, domain in zip(
                _counted(listed), labels, split.test, domains, strict=True
            )
        )
        skipped: list[_Row] = []
        try:
            examples = _examples(rows, len(labels), classes, settings, rgb, skipped)
            first = next(examples, None)
            if first is None:
                raise FedLoomError(
                    f"none of {len(labels)} images can be read, the first is {skipped[0].item.name}"
                )
            shape = first.image.shape
            store.write(
                path,
                chain([first], examples),
                shape,
                classes,
                listed.provenance,
                skipped,
                named,
                split.rule,
            )
            return
        except _ColourAfterGreyError:
            log.info("grey and coloured images: starting again, all as RGB")
            rgb = True


def _check_list(listed: ImageList) -> None:
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


def _counted(listed: ImageList) -> Iterator[Item]:
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


def _check_labels(listed: ImageList, classes: int) -> None:
    """Require that every label is the number of a class.

    Raises:
        FedLoomError: names the first image of which it is not.
    """
    outside = np.flatnonzero((listed.labels < 0) | (listed.labels >= classes))
    if len(outside):
        item = next(item for row, item in enumerate(listed.items()) if row == outside[0])
        label = listed.labels[outside[0]]
        raise FedLoomError(f"{item.name}: label {label} is not in 0..{classes - 1}")


def _split(
    listed: ImageList, labels: np.ndarray, domains: np.ndarray, settings: dict[str, Any]
) -> Split:
    """Return the official test split, or draw one; log which."""
    if listed.test is not None:
        split = Split(listed.test, listed.test_split)
    else:
        split = fixed_test_split(labels, domains, settings["test_fraction"])
    log.info("%d of %d are test images: %s", split.test.sum(), len(labels), split.rule)
    return split


def _examples(
    rows: Iterable[_Row],
    total: int,
    classes: list[str],
    settings: dict[str, Any],
    rgb: bool,
    skipped: list[_Row],
) -> Iterator[store.Example]:
    """Yield the rows' images, all in the shape of the first; append unreadable to `skipped`."""
    first: tuple[str, tuple] | None = None
    read: set[tuple[int, bool]] = set()
    with progress(total, "images") as bar:
        for row in rows:
            bar.update()
            try:
                image = row.item.load()
                if not isinstance(image, Image.Image):
                    kind = type(image).__name__
                    raise FedLoomError(f"{row.item.name}: the source loads {kind}, no PIL image")
                pixels = to_pixels(image, rgb, settings.get("image_size"))
            except FedLoomError:
                raise
            except UNREADABLE as error:
                reason = f"{row.item.name}: unreadable image ({' '.join(str(error).split())})"
                if not settings.get("skip_unreadable"):
                    raise FedLoomError(
                        f"{reason}; mend or remove it, or set skip_unreadable: true"
                    ) from None
                log.warning("skipped %s", reason)
                skipped.append(row)
                continue
            first = first or (row.item.name, pixels.shape)
            read.add((row.label, row.test))
            pixels = _like(first, row.item.name, pixels)
            yield store.Example(pixels, row.label, row.test, row.domain)
    if skipped:
        log.warning("%d of %d images were unreadable and are left out", len(skipped), total)
    if first is not None:
        _check_classes(classes, read, skipped)


def _check_classes(classes: list[str], read: set[tuple[int, bool]], skipped: list[_Row]) -> None:
    """Require that images left out take no class, nor its training images, with them.

    Args:
        read: class and half (True for test) of the images that could be read.

    Raises:
        FedLoomError: names the class.
    """
    for row in skipped:
        readable = [half for half in (False, True) if (row.label, half) in read]
        if readable and (row.test or False in readable):
            continue
        images = "training images" if readable else "images"
        raise FedLoomError(
            f"class '{classes[row.label]}': none of its {images} can be read, among them "
            f"{row.item.name}; mend them or remove the class"
        )


def to_pixels(image: Image.Image, rgb: bool, size: int | None) -> np.ndarray:
    """Return pixels uint8 [H, W, channels], 1 or 3 channels, H = W = `size` if there is one.

    The shorter side is resized to `size` (bicubic, antialiased), then the centre is cut out.

    Raises:
        ValueError: no pixels, pixels without a known range (32-bit integers and floats), or so
            long and narrow an image that resizing it would fill the memory.
    """
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode in GREY_16:
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode} has no fixed range of pixels")
    image = image.convert("L" if image.mode in GREY and not rgb else "RGB")
    if size is not None:
        scale = size / min(image.size)
        wide, high = (max(size, int(side * scale + 1e-9)) for side in image.size)
        if wide * high > LARGEST:
            raise ValueError(f"with image_size {size} it would be resized to {wide} x {high}")
        image = image.resize((wide, high), Image.Resampling.BICUBIC)
        left, top = round((wide - size) / 2), round((high - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _like(first: tuple[str, tuple], name: str, pixels: np.ndarray) -> np.ndarray:
    """Return `pixels` in the shape of the first image."""
    other, (height, width, channels) = first
    if pixels.shape[:2] != (height, width):
        raise FedLoomError(
            f"{name} is {pixels.shape[1]} x {pixels.shape[0]} pixels, but {other} is {width} x "
            f"{height}: a store has one size; set image_size"
        )
    if pixels.shape[2] > channels:
        raise _ColourAfterGreyError
    return np.repeat(pixels, channels // pixels.shape[2], axis=2)
