"""Hold an image inside the page, as a data URL."""

import base64
from typing import NamedTuple


class ImageOnPage(NamedTuple):
    """An image inside the page."""

    # its data URL
    source: str
    # its width on screen in CSS pixels
    width: int


def image_on_page(data: bytes, kind: str, width: int) -> ImageOnPage:
    """Return the bytes of an image of a kind such as "png" with its width on screen."""
    return ImageOnPage(f"data:image/{kind};base64,{in_base64(data)}", width)


def in_base64(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode()
