"""Image files on the user's disk."""

from PIL import Image

from fedloom.common.folders import check_regular


def load(path: str) -> Image.Image:
    """Read and decode an image file.

    Raises:
        OSError: it is missing, or no regular file; other errors of Pillow's decoders.
    """
    check_regular(path)
    with Image.open(path) as image:
        image.load()
        return image
