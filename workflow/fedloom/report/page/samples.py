"""Show a few clients of a partition with some of their training images."""

import io
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from fedloom.common.files import read_table
from fedloom.common.ids import UNASSIGNED
from fedloom.common.receipts import read_receipt
from fedloom.common.run_tables import PARTITION_SCHEMA
from fedloom.data.store import ImageStore
from fedloom.report.figures.chosen_panels import evenly
from fedloom.report.page.data_urls import ImageOnPage, image_on_page

# the most clients that are shown: those that take part in training, and those that are held out
MOST_CLIENTS = {True: 6, False: 2}
# the most images of a client
MOST_IMAGES = 8
# pixels of an image's longer side, and between two images
SIDE = 64
GAP = 4
# the most classes that a line names
MOST_CLASSES = 4


class ClientSample(NamedTuple):
    """A client as the page shows it."""

    client_id: int
    participating: bool
    # the number of its training images
    images: int
    # the most frequent classes with their numbers of images
    classes: str
    # some of its images side by side
    picture: ImageOnPage


def sample_clients(partition: Path, store: Path) -> list[ClientSample]:
    """Return some clients of a partition, each with some of its training images.

    Both are evenly spaced: clients by their numbers, images by their classes. There are no samples
    if the images are no longer on disk, since a report needs only results.
    """
    if not store.is_file():
        return []
    table = read_table(partition, PARTITION_SCHEMA).to_pandas()
    train = table[(table["client_id"] != UNASSIGNED) & ~table["test"]]
    images = ImageStore(store)
    names = [str(name) for name in read_receipt(store)["classes"]]

    samples = []
    for participating, most in MOST_CLIENTS.items():
        rows = train[train["participating"] == participating]
        clients = evenly(sorted(rows["client_id"].unique()), most)
        for client_id in clients:
            own = rows[rows["client_id"] == client_id].sort_values("label", kind="stable")
            index = evenly(own["index"].tolist(), MOST_IMAGES)
            sample = ClientSample(
                client_id=int(client_id),
                participating=participating,
                images=len(own),
                classes=_classes_in_words(own["label"], names),
                picture=_side_by_side(images.images(np.array(index))),
            )
            samples.append(sample)
    return samples


def _classes_in_words(labels: pd.Series, names: Sequence[str]) -> str:
    """Name the most frequent classes of a client with their numbers of images."""
    counts = labels.value_counts()
    shown = zip(counts.index.tolist(), counts.tolist(), strict=True)
    parts = [f"{names[label]} {count}" for label, count in islice(shown, MOST_CLASSES)]
    text = ", ".join(parts)
    if len(counts) > MOST_CLASSES:
        text += f", {len(counts)} classes in all"
    return text


def _side_by_side(images: np.ndarray) -> ImageOnPage:
    """Put images [n, H, W, channels] of bytes side by side, each with a longer side of SIDE."""
    height, width = images.shape[1:3]
    scale = SIDE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))

    # small images keep their pixels; large ones are averaged
    way = Image.Resampling.LANCZOS
    if scale >= 1:
        way = Image.Resampling.NEAREST

    strip = Image.new("RGB", (len(images) * (size[0] + GAP) - GAP, size[1]), "white")
    for number, pixels in enumerate(images):
        # a grey image has one channel, and Pillow wants none
        if pixels.shape[-1] == 1:
            pixels = pixels[..., 0]
        picture = Image.fromarray(pixels).convert("RGB").resize(size, way)
        strip.paste(picture, (number * (size[0] + GAP), 0))

    file = io.BytesIO()
    strip.save(file, "PNG", optimize=True)
    return image_on_page(file.getvalue(), "png", strip.width)
