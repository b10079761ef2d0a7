"""Decode images, and bring them into one form: upright, of 8 bits, of one size."""

import struct
from functools import cache
from io import BytesIO
from typing import Literal

import numpy as np
from PIL import EpsImagePlugin, Image
from PIL.ExifTags import Base

# the formats that Pillow itself decodes into pixels. Two formats are left out: Pillow hands EPS to
# Ghostscript, an interpreter of programs, and IPTC may contain a file of any other format
RASTER = {
    "AVIF", "BLP", "BMP", "DCX", "DDS", "DIB", "FLI", "GIF", "ICNS", "ICO", "IM", "JPEG",
    "JPEG2000", "MSP", "PCX", "PNG", "PPM", "PSD", "QOI", "SGI", "SPIDER", "SUN", "TGA", "TIFF",
    "WEBP", "XBM", "XPM",
}  # fmt: skip
# the suffixes of images that Pillow does not read
NOT_READ = (".heic", ".heif", ".dcm", ".npy")
GREY_MODES = ("1", "L", "LA", "La")
GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")
# the operation that makes an image upright, by its orientation in EXIF
TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# if a resized image has more pixels than this, only the part that is kept is computed
LARGEST = 1 << 26

Transparency = Literal["ignore", "white", "black"]

# no Ghostscript, also for images that torchvision or a plugin's source opens
EpsImagePlugin.gs_binary = False


@cache
def _formats() -> list[str]:
    """Return the names of the formats that are read, in the order in which Pillow tries them."""
    Image.init()
    return [name for name in Image.ID if name in RASTER]


@cache
def image_suffixes() -> set[str]:
    """Return the suffixes of image files in lower case: of formats that are read, and NOT_READ."""
    read = [suffix for suffix, name in Image.registered_extensions().items() if name in RASTER]
    return {*read, *NOT_READ}


def decode_image(file: str | BytesIO) -> Image.Image:
    """Decode an image file; its content determines the format, not its suffix."""
    with Image.open(file, formats=_formats()) as image:
        image.load()
        return image


def highest_grey(image: Image.Image) -> int | None:
    """Return the highest value of a 16-bit grey image; None for all other images."""
    if image.mode not in GREY_16:
        return None
    return int(np.asarray(image).astype(np.uint16).max())


def is_transparent(image: Image.Image) -> bool:
    """Return True if a pixel is not opaque."""
    if not image.has_transparency_data or image.mode in GREY_16:
        return False
    alpha = np.asarray(image.convert("RGBA").getchannel("A"))
    return bool(alpha.min() < 255)


def to_pixels(
    image: Image.Image,
    rgb: bool,
    size: int | None,
    squash: bool = False,
    grey_bits: int = 16,
    transparency: Transparency = "ignore",
) -> np.ndarray:
    """Return the pixels of an image, uint8 [H, W, channels], after turning it as its EXIF says.

    Args:
        image: the decoded image.
        rgb: whether grey images also get three channels; otherwise they have one.
        size: H and W of the result; None: the image keeps its size. The shorter side is resized to
            `size` (bicubic, antialiased), and the centre is cut out.
        squash: whether the whole image is resized to the square instead.
        grey_bits: number of bits that a 16-bit grey image uses; the upper 8 of these are kept.
        transparency: the colour behind transparent pixels; "ignore": their colours as stored.

    Raises:
        ValueError: the image has no pixels; or its pixels have no known range (32-bit integers,
            floats); or a 16-bit grey image has more bits, or is transparent and needs a colour.
    """
    if 0 in image.size:
        raise ValueError("the image has no pixels")
    image = _upright(image)

    # 8 bits of every channel
    if image.mode in GREY_16:
        if transparency != "ignore" and image.has_transparency_data:
            raise ValueError("16-bit grey with a transparent value cannot be put on a colour")
        image = _eight_bits(image, grey_bits)
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode} has no fixed range of pixels")

    # grey or RGB; the mode is chosen before a colour is put behind transparent pixels
    mode = "RGB"
    if image.mode in GREY_MODES and not rgb:
        mode = "L"
    if transparency != "ignore" and image.has_transparency_data:
        behind = Image.new("RGBA", image.size, transparency)
        image = Image.alpha_composite(behind, image.convert("RGBA"))

    # Pillow warns if a palette with several transparent colours becomes RGB at once
    if image.mode == "P" and image.has_transparency_data:
        image = image.convert("RGBA")
    image = image.convert(mode)

    # a square
    if size is not None:
        if squash:
            image = _squashed(image, size)
        else:
            image = _cropped(image, size)

    # a grey image has no axis of channels
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        return pixels[..., None]
    return pixels


def _upright(image: Image.Image) -> Image.Image:
    """Turn or mirror an image as its EXIF says; leave it as it is if the EXIF is damaged.

    Pillow's `exif_transpose` would also write the EXIF anew, and fail if another tag is damaged.
    """
    try:
        orientation = image.getexif().get(Base.Orientation, 1)
    except (struct.error, KeyError, SyntaxError, TypeError, ValueError):
        # unchanged, as in Pillow's reader of JPEG and in viewers
        return image

    turn = TO_UPRIGHT.get(orientation)
    if turn is None:
        return image
    return image.transpose(turn)


def _eight_bits(image: Image.Image, grey_bits: int) -> Image.Image:
    """Return the upper 8 of the lowest `grey_bits` bits of a 16-bit grey image.

    Raises a ValueError if a value has more bits.
    """
    deep = np.asarray(image).astype(np.uint16)
    if deep.max() >> grey_bits:
        raise ValueError(f"a grey of {deep.max()} has more than {grey_bits} bits (grey_bits)")
    return Image.fromarray((deep >> (grey_bits - 8)).astype(np.uint8))


def _squashed(image: Image.Image, size: int) -> Image.Image:
    """Resize an image to a square."""
    return image.resize((size, size), Image.Resampling.BICUBIC)


def _cropped(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size`, and cut out the centre."""
    # the whole image in the new size, and the square in its middle
    scale = size / min(image.size)
    wide, high = (max(size, int(side * scale + 1e-9)) for side in image.size)
    left = round((wide - size) / 2)
    top = round((high - size) / 2)
    box = (left, top, left + size, top + size)
    if wide * high <= LARGEST:
        return image.resize((wide, high), Image.Resampling.BICUBIC).crop(box)

    # hardly any of the image is kept: compute only that part, which differs at most by rounding
    across = image.width / wide
    down = image.height / high
    within = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    return image.resize((size, size), Image.Resampling.BICUBIC, within)
