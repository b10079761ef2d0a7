"""Turn the images that a source lists into a store: decoded, of one shape, in one pass."""

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.logs import progress
from fedloom.data import store
from fedloom.data.image_list import ImageList, Item, Prepared
from fedloom.data.preparation import prepared

log = logging.getLogger(__name__)

GREY = ("1", "L", "LA", "La")
GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")


class _ColourAfterGreyError(Exception):
    """A coloured image follows grey ones, which were written with one channel."""


class _UnreadableError(FedLoomError):
    """An image that cannot be read."""


def write_store(listed: ImageList, settings: dict[str, Any], path: Path) -> None:
    """Read the listed images one at a time and write them into the store `path`.

    Grey images stay grey and coloured ones become RGB; where both occur, all are RGB. Transparency
    and EXIF orientation are ignored, as torchvision does.
    """
    ready = prepared(listed, settings)
    try:
        _write(ready, settings, path, rgb=False)
    except _ColourAfterGreyError:
        log.info("grey and coloured images: starting again, all as RGB")
        _write(ready, settings, path, rgb=True)


def _write(ready: Prepared, settings: dict[str, Any], path: Path, rgb: bool) -> None:
    skipped: list[str] = []
    examples = _examples(ready, settings, rgb, skipped)
    first = next(examples, None)
    if first is None:
        raise FedLoomError(f"none of {len(skipped)} images can be read, the first is {skipped[0]}")
    about = ready.classes, ready.provenance, skipped, ready.named, ready.test_split
    store.write(path, chain([first], examples), first.image.shape, *about)


def _examples(
    ready: Prepared, settings: dict[str, Any], rgb: bool, skipped: list[str]
) -> Iterator[store.Example]:
    """Yield the images, all in the shape of the first; note unreadable ones in `skipped`."""
    first, shape, kept = "", (), set[int]()
    with progress(len(ready.labels), "images") as bar:
        for row, item in enumerate(ready.items()):
            bar.update()
            try:
                pixels = _pixels(item, settings, rgb)
            except _UnreadableError as error:
                if not settings.get("skip_unreadable"):
                    raise FedLoomError(f"{error}; mend it, or set skip_unreadable: true") from None
                log.warning("skipped %s", error)
                skipped.append(item.name)
                continue
            if not shape:
                first, shape = item.name, pixels.shape
            if pixels.shape[:2] != shape[:2]:
                raise FedLoomError(
                    f"{item.name} is {pixels.shape[1]} x {pixels.shape[0]} pixels, but {first} is "
                    f"{shape[1]} x {shape[0]}: a store has one size; set image_size"
                )
            if pixels.shape[2] > shape[2]:
                raise _ColourAfterGreyError
            pixels = np.repeat(pixels, shape[2] // pixels.shape[2], axis=2)
            label = int(ready.labels[row])
            kept.add(label)
            yield store.Example(pixels, label, bool(ready.test[row]), str(ready.domains[row]))
    for label in {*ready.labels.tolist()} - kept if kept else ():
        raise FedLoomError(
            f"no image of class {ready.classes[label]} can be read; mend one of them"
        )
    if skipped:
        log.warning("%d of %d images were unreadable", len(skipped), len(ready.labels))


def _pixels(item: Item, settings: dict[str, Any], rgb: bool) -> np.ndarray:
    """Read an image and return its pixels, see `to_pixels`."""
    try:
        squash = settings.get("resize") == "squash"
        return to_pixels(item.load(), rgb, settings.get("image_size"), squash)
    except FedLoomError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever they like
        raise _UnreadableError(f"{item.name}: unreadable image ({one_line(error)})") from None


def unreadable(item: Item) -> str | None:
    """Return why an image cannot be read, in a line that names it; None if it can."""
    try:
        _pixels(item, {}, False)
    except _UnreadableError as error:
        return str(error)
    return None


def to_pixels(image: Image.Image, rgb: bool, size: int | None, squash: bool = False) -> np.ndarray:
    """Return pixels uint8 [H, W, channels], 1 or 3 channels, H = W = `size` if there is one.

    The shorter side is resized to `size` (bicubic, antialiased), then the centre is cut out; or
    `squash` resizes the whole image to the square.

    It raises a ValueError at no pixels, or pixels without a known range (32-bit integers, floats).
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
        image = image.resize((wide, high), Image.Resampling.BICUBIC)
        left, top = round((wide - size) / 2), round((high - size) / 2)
        image = image.crop((left, top, left + size, top + size))
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
