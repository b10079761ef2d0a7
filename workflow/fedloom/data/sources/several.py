"""Join several data sets to one, in which each data set has its own classes and is a domain."""

from itertools import chain

import numpy as np

from fedloom.common.json_types import JsonDict
from fedloom.config.datasets import DATA_FOLDER, ImageSize, ImageSource
from fedloom.data import sources
from fedloom.data.image_list import ImageList
from fedloom.data.preparation import prepare


class Several(ImageSource):
    """Several data sets as one. Their classes are called "part/class", and each data set is a
    domain with the name of its part.
    """

    parts: JsonDict
    """Maps the name of each part to its entry, in the form of an entry of `datasets`. A part must
    not set `image_size`, `resize`, `grey_bits`, `transparency` or `skip_unreadable`, which are set
    here for all parts; those of its recipe are ignored."""
    root: str = DATA_FOLDER
    """Folder of the parts. A part with a recipe lies below it where the recipe has it below
    `data`."""
    # without a default, since the parts need one size
    image_size: ImageSize  # pyright: ignore[reportIncompatibleVariableOverride]
    """Side of the stored images in pixels. The shorter side is resized to it (bicubic), and the
    centre is cut out as a square."""


def read(settings: JsonDict) -> ImageList:
    """List the images of the parts one after the other; each part is prepared by its own keys."""
    # the images of each part
    parts = {}
    for name, entry in settings["parts"].items():
        own = {key: value for key, value in entry.items() if key != "source"}
        parts[name] = prepare(sources.read(entry["source"], own), own)

    # the first class of each part, and their images one after the other
    starts = np.cumsum([0, *(len(part.classes) for part in parts.values())])
    labels = [start + part.labels for start, part in zip(starts[:-1], parts.values(), strict=True)]
    classes = []
    for name, part in parts.items():
        classes += [f"{name}/{label}" for label in part.classes]
    return ImageList(
        items=lambda: chain.from_iterable(part.items() for part in parts.values()),
        labels=np.concatenate(labels),
        classes=classes,
        provenance="; ".join(f"{name}: {part.provenance}" for name, part in parts.items()),
        domains=np.repeat([*parts], [len(part.labels) for part in parts.values()]),
        test=np.concatenate([part.test for part in parts.values()]),
        named=all(part.named for part in parts.values()),
        test_split=", ".join(f"{name}: {part.test_split}" for name, part in parts.items()),
    )
