"""Turn images as people have them into a store: decoded, of one shape, in one pass."""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fedloom.common.errors import FedLoomError
from fedloom.common.logs import progress
from fedloom.data import store
from fedloom.data.image_list import ImageList, Item
from fedloom.data.preparation import prepared

log = logging.getLogger(__name__)

# On damaged files Pillow's decoders raise OSError, SyntaxError, ValueError, RuntimeError,
# struct.error, DecompressionBombError and more.
UNREADABLE = Exception
# resized to more pixels than this an image is refused, as Pillow refuses to read one
LARGEST = 178_956_970
GREY = ("1", "L", "LA", "La")
GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")


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
        settings: of the dataset; the keys that `prepared` reads, `image_size`, `resize` and
            `skip_unreadable` are read, where they are there.

    Raises:
        FedLoomError: names the first image that is unreadable (unless skipped), or of another size
            than the first one; or the class of which no image (no training image) can be read; or
            nothing is left, or no test image; or see `prepared`.
    """
    ready = prepared(listed, settings)
    rgb = False
    while True:
        rows = (
            _Row(item, int(label), bool(test), str(domain))
            for item, label, test, domain in zip(
                ready.items(), ready.labels, ready.test, ready.domains, strict=True
            )
        )
        skipped: list[_Row] = []
        try:
            examples = _examples(rows, len(ready.labels), ready.classes, settings, rgb, skipped)
            first = next(examples, None)
            if first is None:
                raise FedLoomError(
                    f"none of {len(ready.labels)} images can be read, the first is "
                    f"{skipped[0].item.name}"
                )
            store.write(
                path,
                chain([first], examples),
                first.image.shape,
                ready.classes,
                ready.provenance,
                skipped,
                ready.named,
                ready.test_split,
            )
            return
        except _ColourAfterGreyError:
            log.info("grey and coloured images: starting again, all as RGB")
            rgb = True


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
                squash = settings.get("resize") == "squash"
                pixels = to_pixels(image, rgb, settings.get("image_size"), squash)
            except FedLoomError:
                raise
            except UNREADABLE as error:
                reason = _reason(row.item, error)
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


def _reason(item: Item, error: Exception) -> str:
    """Return a line that says which image cannot be read, and why."""
    return f"{item.name}: unreadable image ({' '.join(str(error).split())})"


def unreadable(item: Item) -> str | None:
    """Return why an image cannot be read, in a line that names it; None if it can."""
    try:
        to_pixels(item.load(), False, None)
    except FedLoomError:
        raise
    except UNREADABLE as error:
        return _reason(item, error)
    return None


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


def to_pixels(image: Image.Image, rgb: bool, size: int | None, squash: bool = False) -> np.ndarray:
    """Return pixels uint8 [H, W, channels], 1 or 3 channels, H = W = `size` if there is one.

    The shorter side is resized to `size` (bicubic, antialiased), then the centre is cut out.

    Args:
        squash: resize the whole image to the square instead, whatever its shape.

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
        if squash:
            wide, high = size, size
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
