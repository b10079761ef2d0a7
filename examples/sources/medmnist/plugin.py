"""Medical images as MedMNIST publishes them: NumPy arrays with a test split.

Yang et al., MedMNIST v2, Scientific Data 10, 2023. Labels are numbers: CLIP methods need
`class_names` in the dataset.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from fedloom.data.source_toolbox import FedLoomError, ImageList, Item, resource


def read(settings: dict[str, Any]) -> ImageList:
    """Return the list of the images in the file `settings["file"]`.

    The images are those of "train", of "val" with the setting `validation`, and of "test".

    Raises:
        FedLoomError: the file is damaged, or is not MedMNIST's.
    """
    file = resource(settings["file"])
    parts = ["train", *(["val"] if settings["validation"] else []), "test"]
    try:
        with np.load(file) as arrays:
            images = [arrays[f"{part}_images"] for part in parts]  # each uint8 [n, H, W(, 3)]
            labels = [arrays[f"{part}_labels"].reshape(-1) for part in parts]
    except Exception as error:  # a damaged archive may raise any error
        raise FedLoomError(f"{file}: no file of MedMNIST ({error}); download it again") from None

    def items() -> Iterator[Item]:
        """Yield an item for each image, in the order of the labels."""
        for part, pixels in zip(parts, images, strict=True):
            for row, image in enumerate(pixels):
                yield Item(f"{file} {part} {row}", lambda image=image: Image.fromarray(image))

    every = np.concatenate(labels).astype(int)
    return ImageList(
        items=items,
        labels=every,
        classes=[str(number) for number in range(every.max() + 1)],
        provenance="MedMNIST",
        test=np.repeat([part == "test" for part in parts], [len(part) for part in labels]),
        named=False,
    )
