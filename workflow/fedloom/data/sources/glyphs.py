"""Letters of many scripts, drawn; font families are domains. See fedloom.data.glyphs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from fedloom.data import glyphs
from fedloom.data.images import ImageList, Item


def read(settings: dict[str, Any]) -> ImageList:
    """Draw `classes` target characters in 12 faces, `draws` times each: 32 x 32 pixels, grey."""
    import matplotlib
    import PIL

    chosen = glyphs.classes("target", settings["classes"])
    pixels, labels, faces, names = glyphs.render_set(chosen, settings["draws"])
    family = glyphs.faces()

    def items() -> Iterator[Item]:
        for row, image in enumerate(pixels[..., 0]):
            yield Item(f"drawing {row}", lambda image=image: Image.fromarray(image))

    return ImageList(
        items=items,
        labels=labels,
        classes=names,
        provenance=(
            f"drawn by Pillow {PIL.__version__} from the fonts of matplotlib "
            f"{matplotlib.__version__}"
        ),
        domains=np.array([family[face] for face in faces]),
    )
