"""Turn the images that a source lists into a store: decoded, of one shape, in one pass."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.json_types import JsonDict
from fedloom.data import store
from fedloom.data.image_list import ImageList, Item, Prepared
from fedloom.data.pixels import highest_grey, is_transparent, to_pixels
from fedloom.data.preparation import prepare
from fedloom.machine.process_log import progress

log = logging.getLogger(__name__)
# the keys of a dataset that decide which pixels an image becomes
PREPARATION = ("resize", "grey_bits", "transparency")


class _ColourAfterGreyError(Exception):
    """A coloured image follows grey ones, which were written with one channel."""


class _UnreadableError(FedLoomError):
    """An image that cannot be read."""


def write_store(listed: ImageList, settings: JsonDict, path: Path) -> None:
    """Read the listed images one at a time and write them into the store `path`.

    Grey images stay grey and coloured ones become RGB. If there are both, all become RGB.
    """
    ready = prepare(listed, settings)
    try:
        _write(ready, settings, path, rgb=False)
    except _ColourAfterGreyError:
        log.info("grey and coloured images: starting again, all as RGB")
        _write(ready, settings, path, rgb=True)


@dataclass
class _Found:
    """What was noticed in the images that were read so far."""

    # the names of the images that cannot be read
    skipped: list[str] = field(default_factory=list)
    # the names of the images with transparent pixels
    transparent: list[str] = field(default_factory=list)
    # the highest value in all 16-bit grey images; None if there are none
    highest_grey: int | None = None
    # the name of the first 16-bit grey image
    first_deep: str = ""


def _write(ready: Prepared, settings: JsonDict, path: Path, rgb: bool) -> None:
    """Write the images that can be read; `rgb` turns grey images into RGB.

    Raises a FedLoomError if no image can be read.
    """
    # all images must have the shape of the first
    found = _Found()
    examples = _examples(ready, settings, rgb, found)
    first = next(examples, None)
    if first is None:
        skipped = found.skipped
        raise FedLoomError(f"none of {len(skipped)} images can be read, the first is {skipped[0]}")

    store.write_images(
        path,
        chain([first], examples),
        shape=first.image.shape,
        classes=ready.classes,
        provenance=ready.provenance,
        skipped=found.skipped,
        named=ready.named,
        test_split=ready.test_split,
        preparation={key: settings[key] for key in PREPARATION if key in settings},
    )


def _examples(
    ready: Prepared, settings: JsonDict, rgb: bool, found: _Found
) -> Iterator[store.Example]:
    """Yield the images, all in the shape of the first; note in `found` what is special about them.

    Raises a FedLoomError if an image has another size or cannot be read, or if no image of a class
    can be read; and `_ColourAfterGreyError`.
    """
    # name and shape of the first image
    first = ""
    shape: tuple[int, ...] = ()
    # the classes that have an image
    kept = set[int]()

    with progress(len(ready.labels), "images") as bar:
        for row, item in enumerate(ready.items()):
            bar.update()
            try:
                pixels = _pixels(item, settings, rgb, found)
            except _UnreadableError as error:
                if not settings.get("skip_unreadable"):
                    raise FedLoomError(
                        f"{error}; repair or remove the file, or set skip_unreadable: true"
                    ) from None
                log.warning("skipped %s", error)
                found.skipped.append(item.name)
                continue

            # all images have one shape; grey ones are repeated in three channels
            if not shape:
                first = item.name
                shape = pixels.shape
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

    # every class must have an image
    lost = {*ready.labels.tolist()} - kept
    if kept and lost:
        raise FedLoomError(
            f"no image of class {ready.classes[min(lost)]} can be read; repair one of its images"
        )
    _check_found(found, settings, len(ready.labels))


def _check_found(found: _Found, settings: JsonDict, images: int) -> None:
    """Refuse 16-bit images that use only a few of their bits; log what keys could change."""
    # one of the 16-bit grey images must use the highest bit, unless a key says how many bits count
    highest = found.highest_grey
    if highest is not None and highest < 1 << 15 and "grey_bits" not in settings:
        bits = max(8, highest.bit_length())
        raise FedLoomError(
            f"{found.first_deep}: no 16-bit image has a grey above {highest}, so that most levels "
            f"would be lost; set grey_bits: {bits}, or grey_bits: 16 if they are so dark"
        )

    if found.skipped:
        log.warning("%d of %d images were unreadable", len(found.skipped), images)
    if found.transparent and "transparency" not in settings:
        log.warning(
            "%d of %d images have transparent pixels, as %s, whose hidden colours are shown; set "
            "transparency: white to show them on white",
            len(found.transparent),
            images,
            found.transparent[0],
        )


def _pixels(item: Item, settings: JsonDict, rgb: bool, found: _Found) -> np.ndarray:
    """Read an image and return its pixels (see `to_pixels`); note in `found` what is special.

    Raises an `_UnreadableError` if it cannot be decoded.
    """
    try:
        image = item.load()
        pixels = to_pixels(
            image,
            rgb,
            settings.get("image_size"),
            settings.get("resize") == "squash",
            settings.get("grey_bits", 16),
            settings.get("transparency", "ignore"),
        )
        highest = highest_grey(image)
        transparent = is_transparent(image)
    except FedLoomError:
        raise
    except Exception as error:
        # Pillow's decoders raise many kinds of exceptions
        raise _UnreadableError(f"{item.name}: unreadable image ({one_line(error)})") from None

    if highest is not None:
        found.first_deep = found.first_deep or item.name
        found.highest_grey = max(highest, found.highest_grey or 0)
    if transparent:
        found.transparent.append(item.name)
    return pixels


def unreadable(item: Item) -> str | None:
    """Return a line that says why an image cannot be read; None if it can be read."""
    try:
        _pixels(item, {}, False, _Found())
    except _UnreadableError as error:
        return str(error)
    return None
