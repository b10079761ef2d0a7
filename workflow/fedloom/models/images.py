"""Turn any images into the pixels that a trained model takes, as its study's images were made."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedloom.common.errors import FedLoomError, one_line
from fedloom.data.image_list import Item, file_items
from fedloom.data.pixels import Transparency, to_pixels

AnyImage = str | PathLike | Image.Image | np.ndarray


@dataclass(frozen=True)
class Preparation:
    """How an image becomes pixels: a function from a PIL image to a tensor.

    Attributes:
        height, width: the size of the pixels.
        channels: 1 for grey, or 3 for red, green and blue.
        resize: "crop" resizes the shorter side and cuts out the centre; "squash" resizes the whole
            image.
        grey_bits: number of bits that a 16-bit grey image uses.
        transparency: the colour behind transparent pixels (see `fedloom.data.pixels.to_pixels`).
    """

    height: int
    width: int
    channels: int
    resize: str = "crop"
    grey_bits: int = 16
    transparency: Transparency = "ignore"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and channels of the pixels."""
        return self.height, self.width, self.channels

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the pixels of an image, uint8 [channels, H, W].

        Raises:
            ValueError: the image cannot be brought to this size, or its pixels have no known range.
        """
        # a store of images that are not square has no rule by which others are resized
        size = None
        if self.height == self.width:
            size = self.height

        pixels = to_pixels(
            image,
            self.channels == 3,
            size,
            self.resize == "squash",
            self.grey_bits,
            self.transparency,
        )
        if pixels.shape[:2] != (self.height, self.width):
            high, wide, _ = pixels.shape
            raise ValueError(
                f"must be {self.width} x {self.height} pixels, as all images of the study are, got "
                f"{wide} x {high}; resize it"
            )

        # a model of grey images takes the brightness of coloured ones
        if pixels.shape[2] > self.channels:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        return torch.from_numpy(pixels.copy()).movedim(-1, 0).contiguous()


class NewImage(NamedTuple):
    """An image to predict, which is read only when it is needed.

    Attributes:
        name: what predictions call it: its path, or else its position in the list.
        item: the image, with the name that errors have.
    """

    name: str
    item: Item


def new_images(images: AnyImage | Iterable[AnyImage]) -> list[NewImage]:
    """Return images that are read one by one; a single image is a list of one.

    Raises:
        FedLoomError: one of them is neither a path nor a PIL image nor an array of 8-bit pixels.
    """
    if isinstance(images, str | PathLike | Image.Image | np.ndarray):
        images = [images]
    if not isinstance(images, Iterable):
        raise FedLoomError(
            "images: must be a path, a PIL image or an array, or a list of these, got "
            f"{type(images).__name__}"
        )
    return [_new_image(number, image) for number, image in enumerate(images)]


def files_to_predict(paths: Sequence[str]) -> list[NewImage]:
    """Return the images in the files at these paths."""
    return [NewImage(item.name, item) for item in file_items(paths)()]


def _new_image(number: int, image: AnyImage) -> NewImage:
    """Return an image, whose position in the list is `number`.

    Raises:
        FedLoomError: it is neither a path nor a PIL image nor an array of 8-bit pixels.
    """
    called = f"image {number}"
    if isinstance(image, str | PathLike):
        (found,) = files_to_predict([fspath(image)])
        return found
    if isinstance(image, Image.Image):
        return NewImage(str(number), Item(called, partial(_same, image)))
    if not isinstance(image, np.ndarray):
        raise FedLoomError(
            f"{called}: must be a path, a PIL image or an array, got {type(image).__name__}; "
            "convert it"
        )

    # an array of grey images may have an axis of one channel
    pixels = image
    if image.ndim == 3 and image.shape[2] == 1:
        pixels = image[..., 0]
    has_colour = pixels.ndim == 3 and pixels.shape[2] in (3, 4)
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or has_colour):
        raise FedLoomError(
            f"{called}: an array must be uint8 [H, W] or [H, W, channels] with 1, 3 or 4 channels, "
            f"got {image.dtype} {[*image.shape]}; convert it"
        )
    return NewImage(str(number), Item(called, partial(Image.fromarray, pixels)))


def _same(image: Image.Image) -> Image.Image:
    """Return the image."""
    return image


class UnreadableError(FedLoomError):
    """An image that cannot be read, or that cannot be brought into the model's size."""


def read_pixels(item: Item, prepare: Preparation) -> Tensor:
    """Read an image and return its pixels, uint8 [channels, H, W].

    Raises:
        UnreadableError: the image cannot be read.
    """
    try:
        return prepare(item.load())
    except FedLoomError:
        raise
    # Pillow's decoders raise many kinds of exceptions
    except Exception as error:
        reason = one_line(getattr(error, "strerror", None) or error)
        raise UnreadableError(f"{item.name}: unreadable image ({reason})") from None
